"""Data files: read from a given folder, else downloaded once, checked and kept in the cache.

Every download is pinned to a commit of a public repository and to the SHA-256 of its bytes.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

from tracekit._util.progress import report_waiting
from tracekit._util.warn import warn
from tracekit.errors import DataFormatError, DataNotFoundError, DataWarning

_HOST = "https://raw.githubusercontent.com"
_TIMEOUT = 10.0
FILES: dict[str, Any] = json.loads(Path(__file__).with_name("files.json").read_text("utf-8"))
"""By data set, the `origin` that users are told, and for downloads the `repository` (owner/name)
and `remotes`: by file `commit`, `path`, and `sha256` in hexadecimal."""


def read_file(dataset: str, data_dir: Path | None, name: str) -> str:
    """Text of a data set's file, from a folder or, without one, from the cache or a download."""
    path = _cached_path(dataset, name) if data_dir is None else data_dir / name
    if not path.is_file():
        raise _missing_file_error(dataset, name, f"{data_dir} does not hold it")
    return path.read_text(encoding="utf-8-sig")


def read_lines(dataset: str, data_dir: Path | None, name: str) -> list[str]:
    """Lines of a file, stripped, without empty ones; arguments and errors as in `read_file`."""
    return list(filter(None, map(str.strip, read_file(dataset, data_dir, name).splitlines())))


@report_waiting("Reading the data set")
def _cached_path(dataset: str, name: str) -> Path:
    remote = FILES[dataset].get("remotes", {}).get(name)
    if remote is None:
        raise _missing_file_error(dataset, name, "no data_dir was given")
    import pooch
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    folder = pooch.os_cache("tracekit") / dataset
    url = f"{_HOST}/{FILES[dataset]['repository']}/{remote['commit']}/{remote['path']}"
    try:
        path = pooch.retrieve(
            url,
            known_hash=f"sha256:{remote['sha256']}",
            fname=name,
            path=folder,
            downloader=cast(Any, pooch.HTTPDownloader(timeout=_TIMEOUT)),
        )
    except (RequestException, OSError) as error:
        problem = f"it is neither in {folder} nor can {url} be reached"
        raise _missing_file_error(dataset, name, problem) from error
    except ValueError as error:
        raise DataFormatError(
            f"The file {url} is not the one that tracekit knows (its SHA-256 "
            "differs). Try again, or get it elsewhere and pass its folder as data_dir."
        ) from error
    return Path(path)


def _missing_file_error(dataset: str, name: str, problem: str) -> DataNotFoundError:
    return DataNotFoundError(
        f"The data set {dataset!r} needs the file {name}, and {problem}. "
        f"Get it from {FILES[dataset]['origin']} and pass its folder as data_dir (--data-dir)."
    )


def check_size(dataset: str, n_examples: int, n_published: int, reason: str = "") -> None:
    """Warns (`DataWarning`) of a data set whose number of examples is not the published one."""
    if n_examples != n_published:
        counts = f"{dataset} has {n_examples} examples here; the paper has {n_published}"
        warn(f"{counts} ({reason})." if reason else f"{counts}.", DataWarning)
