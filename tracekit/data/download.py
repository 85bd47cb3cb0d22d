"""Data files: read from a given folder, else downloaded once, checked and kept in the cache.

Every download is pinned to a commit of a public repository and to the SHA-256 of its bytes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tracekit._util.warn import warn
from tracekit.errors import DataFormatError, DataNotFoundError, DataWarning

_HOST = "https://raw.githubusercontent.com"
_TIMEOUT = 10.0


@dataclass(frozen=True, kw_only=True)
class DatasetFiles:
    """The files of a data set, and where they come from."""

    dataset: str
    """Name of the data set, and of its folder in the cache."""
    origin: str
    """Sentence for users: the place to get the files from."""
    repository: str = ""
    """Public repository that files are downloaded from, as owner/name."""
    remotes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Files that can be downloaded, by name: `commit`, `path`, and `sha256` in hexadecimal."""

    @classmethod
    def for_dataset(cls, dataset: str) -> DatasetFiles:
        """The files that `files.json` lists for a data set."""
        table = json.loads(Path(__file__).with_name("files.json").read_text(encoding="utf-8"))
        return cls(dataset=dataset, **table[dataset])

    def read(self, data_dir: Path | None, name: str) -> str:
        """Text of a file, from a folder or, if `data_dir` is None, from the cache or a download."""
        path = self._cached_path(name) if data_dir is None else data_dir / name
        if not path.is_file():
            raise self._missing_file_error(name, f"{data_dir} does not hold it")
        return path.read_text(encoding="utf-8-sig")

    def read_lines(self, data_dir: Path | None, name: str) -> list[str]:
        """Lines of a file, stripped, without empty ones; arguments and errors as in `read`."""
        return list(filter(None, map(str.strip, self.read(data_dir, name).splitlines())))

    def _cached_path(self, name: str) -> Path:
        if name not in self.remotes:
            raise self._missing_file_error(name, "no data_dir was given")
        import pooch
        from requests.exceptions import RequestException

        pooch.get_logger().setLevel(logging.WARNING)
        folder = pooch.os_cache("tracekit") / self.dataset
        remote = self.remotes[name]
        url = f"{_HOST}/{self.repository}/{remote['commit']}/{remote['path']}"
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
            raise self._missing_file_error(name, problem) from error
        except ValueError as error:
            raise DataFormatError(
                f"The file {url} is not the one that tracekit knows (its SHA-256 "
                "differs). Try again, or get it elsewhere and pass its folder as data_dir."
            ) from error
        return Path(path)

    def _missing_file_error(self, name: str, problem: str) -> DataNotFoundError:
        return DataNotFoundError(
            f"The data set {self.dataset!r} needs the file {name}, and {problem}. "
            f"Get it from {self.origin} and pass its folder as data_dir (--data-dir)."
        )


def check_size(dataset: str, n_examples: int, n_published: int, reason: str = "") -> None:
    """Warns (`DataWarning`) of a data set whose number of examples is not the published one."""
    if n_examples != n_published:
        explanation = f" ({reason})" if reason else ""
        counts = f"{dataset} has {n_examples} examples here; the paper has {n_published}"
        warn(f"{counts}{explanation}.", DataWarning)
