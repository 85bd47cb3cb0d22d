"""Options in TOML files: read with their keys checked, and written to be read again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tracekit._util.files import write_beside
from tracekit.errors import ConfigError, DataNotFoundError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def read_options(path: str | Path, keys: Iterable[str]) -> dict[str, Any]:
    """Reads a TOML file of options; `max-passes` and `max_passes` are the same key.

    Raises:
        DataNotFoundError: There is no such file.
        ConfigError: It is not TOML, or has a key twice.
        UnknownNameError: It has another key than `keys` (with underscores).
    """
    path = Path(path)
    if not path.is_file():
        raise DataNotFoundError(f"There is no file {path}. Give a TOML file of options.")
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as TOML: {error}. Write lines such as limit = 32 and "
            'methods = ["pgb-ct", "top-k"].'
        ) from error
    allowed = sorted(keys)
    options: dict[str, Any] = {}
    for key, value in entries.items():
        name = key.replace("-", "_")
        if name not in allowed:
            raise UnknownNameError("key", name, allowed)
        if name in options:
            raise ConfigError(f"{path} has the key {name} twice. Keep one of them.")
        options[name] = value
    return options


def write_options(path: str | Path, options: Mapping[str, Any]) -> None:
    """Writes options as TOML; those that are None or empty lists are left out.

    Raises:
        OSError: The file cannot be written.
    """
    import tomli_w

    content = {name: _plain(value) for name, value in options.items() if value not in (None, [])}
    write_beside(Path(path), tomli_w.dumps(content).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
