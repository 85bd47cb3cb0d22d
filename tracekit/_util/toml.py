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


_CODE = "trust_remote_code"


def read_options(path: str | Path, keys: Iterable[str]) -> dict[str, Any]:
    """Reads a TOML file of options, named as in `keys`; `max-passes` is `max_passes`.

    A file that asks to run the code of a model is refused.
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
    if _CODE in str(entries):
        raise ConfigError(
            f"{path} asks for {_CODE}, and a file of options runs no code. Take it out. If you "
            f"trust the model, say --model-option {_CODE}=true in the command, or so in Python."
        )
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
    """Writes options as TOML, but for None, empty lists, and leave to run the code of a model."""
    import tomli_w

    plain = {name: _plain(value) for name, value in options.items()}
    content = {name: value for name, value in plain.items() if value not in (None, [])}
    write_beside(Path(path), tomli_w.dumps(content))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value if _CODE not in str(each)]
    return str(value) if isinstance(value, Path) else value
