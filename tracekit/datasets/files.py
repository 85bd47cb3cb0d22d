"""Reading data files that the user has on disk."""

from __future__ import annotations

from pathlib import Path

from tracekit.errors import DataNotFoundError


def read_lines(data_dir: Path | None, name: str, dataset: str, origin: str) -> list[str]:
    """Lines of a file, without line ends and empty lines.

    Args:
        data_dir: Folder that holds the file.
        name: Name of the file.
        dataset: Name of the data set, for the message.
        origin: Where the file can be had, for the message.

    Raises:
        DataNotFoundError: No folder was given, or it does not hold the file.
    """
    if data_dir is None or not (data_dir / name).is_file():
        where = "no data_dir was given" if data_dir is None else f"{data_dir} does not hold it"
        raise DataNotFoundError(
            f"The data set {dataset!r} needs the file {name}, and {where}. "
            f"Get it from {origin} and pass its folder as data_dir (--data-dir)."
        )
    text = (data_dir / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
