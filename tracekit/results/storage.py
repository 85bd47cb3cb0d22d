"""Storage: dataclasses as JSON and safetensors, by one codec over their fields.

A document holds every field but tensors, whose file lies beside it; a grid of pairs, which people
read, holds its tensors as lists. Nothing is pickled, so opening a run from elsewhere executes
nothing. A pydantic model that is made from the annotations of the fields holds the entries to their
types, before they are written and after they are read. `docs/files.md` says what the digests are
for: `curve.json` holds the digests of its runs, and `pareto.json` the digest of `curve.json`.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import AbstractArray
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from safetensors import SafetensorError
from safetensors.torch import load as deserialised
from safetensors.torch import save as serialised
from torch import Tensor

from tracekit._util.arguments import check_arguments
from tracekit._util.files import json_digest, write_atomically, write_csv
from tracekit._util.options import as_path, short_repr
from tracekit.errors import ResultFormatError, ResultNotFoundError, TracekitError
from tracekit.results.display import Tabular

FORMAT_VERSION = 7
"""Files of other versions are refused: until version 6 a fingerprint depended on the source, so
that searched examples would be taken for fresh ones."""
NOT_SAVED = {"saved": False}
"""Metadata of a field that stays in this process."""
_DIGEST, _TENSORS_DIGEST, _LABELS = "sha256", "tensors_sha256", "selected"

_T = TypeVar("_T")


def save_dataclass(value: Any, path: Path, *, inline: bool = False) -> str:
    """Writes a dataclass to a `.json` document, whose digest it returns.

    The annotations of the class say what it holds. Its tensors go to a file beside the document or,
    `inline`, into it as lists.

    Raises:
        ResultFormatError: An entry could not be read again; nothing is written.
    """
    tensors: dict[str, Tensor] = {}
    entries = _plain(_encoded(value, type(value), "", None if inline else tensors))
    try:
        document_model(type(value), inline).model_validate_json(json.dumps(entries))
    except ValidationError as error:
        raise ResultFormatError(f"{path} cannot be written: {_first_problem(error)}.") from error
    as_path("path", path).parent.mkdir(parents=True, exist_ok=True)
    labels = getattr(value, "labels", None)
    if labels is not None and "labels" not in entries:
        # For people who open the file; loading ignores them.
        entries[_LABELS] = list(labels)
    if tensors:
        # Copies: parts of one tensor may not share its memory there.
        copies = {name: each.cpu().contiguous().clone() for name, each in tensors.items()}
        content = serialised(copies)
        write_atomically(path.with_suffix(".safetensors"), content)
        entries[_TENSORS_DIGEST] = hashlib.sha256(content).hexdigest()
    return write_document(path, entries)


def load_dataclass(
    cls: type[_T], path: Path, digest: str | None = None, *, inline: bool = False
) -> _T:
    """Reads what `save_dataclass` wrote; `digest` is what it returned, where that is known.

    Raises:
        ResultNotFoundError: There is no such file.
        ResultFormatError: It is damaged, was changed or is of another format version; or an entry
            or a tensor is of another type than the class has.
    """
    document = read_document(path, digest)
    document.pop(_LABELS, None)
    tensors_digest = document.pop(_TENSORS_DIGEST, None)
    tensors = {} if tensors_digest is None else _read_tensors(path, tensors_digest)
    try:
        entries = document_model(cls, inline).model_validate_json(json.dumps(document))
        value = _decoded(entries, cls, "", tensors)
        if tensors:
            raise ValueError(f"the tensors {', '.join(sorted(tensors))} are of no field")
    except (ValueError, TypeError, KeyError, TracekitError) as error:
        problem = _first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise ResultFormatError(
            f"{path} cannot be read: {problem.rstrip('.')}. Repeat the run that wrote it, or "
            "restore the file."
        ) from error
    return value


@check_arguments
class InFolder:
    """What is a document in a folder, such as that of a run."""

    FILE: ClassVar[str]
    """Name of the document."""

    def save(self, folder: str | Path) -> Path:
        """Writes it to a folder, which is made if need be; returns the folder."""
        save_dataclass(self, Path(folder) / self.FILE)
        return Path(folder)

    @classmethod
    def load(cls: type[_T], folder: str | Path) -> _T:
        """Reads what `save` wrote; errors as of `TraceResult.load`."""
        return load_dataclass(cls, Path(folder) / cls.FILE)  # type: ignore[attr-defined]


class SavedTable(Tabular):
    """A table that people read as numbers, in one file."""

    def save(self, path: str | Path) -> Path:
        """Writes all numbers to `.json`, which `load` reads, or `.csv`, a line per row."""
        path = as_path("path", path)
        if path.suffix == ".json":
            save_dataclass(self, path, inline=True)
        else:
            write_csv(self.to_frame(), path)
        return path

    @classmethod
    def load(cls: type[_T], path: str | Path) -> _T:
        """Reads the `.json` file that `save` wrote; errors as of `TraceResult.load`."""
        return load_dataclass(cls, Path(path), inline=True)


def write_document(path: Path, entries: Mapping[str, Any]) -> str:
    """Writes a JSON file with the format version and a digest of its entries; returns that."""
    entries = _plain(entries)
    digest = json_digest(entries)
    document = {"format_version": FORMAT_VERSION, _DIGEST: digest, **entries}
    write_atomically(path, json.dumps(document, indent=1) + "\n")
    return digest


def _plain(entries: Any) -> Any:
    """Entries as a reader finds them; what is no character of UTF-8 becomes a question mark."""
    text = json.dumps(entries, default=str, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def read_document(path: Path, digest: str | None = None) -> dict[str, Any]:
    """Reads a JSON file; `digest` is what `write_document` returned, where that is known.

    Raises:
        ResultNotFoundError: There is no such file.
        ResultFormatError: It is damaged, was changed, or is of another format version.
    """
    if not as_path("path", path).is_file():
        raise ResultNotFoundError(
            f"The folder {path.parent} holds no {path.name}. Give a folder that a run was saved to."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_check_keys)
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged_error(path) from error
    if not isinstance(document, dict):
        raise _damaged_error(path)
    format_version = document.pop("format_version", None)
    if format_version != FORMAT_VERSION:
        raise ResultFormatError(
            f"{path} has format version {short_repr(format_version)}; this tracekit reads version "
            f"{FORMAT_VERSION}. Open it with the tracekit that wrote it, or run it again."
        )
    written = document.pop(_DIGEST, None)
    if written != json_digest(document) or digest not in (None, written):
        raise _damaged_error(path)
    return document


def _damaged_error(path: Path) -> ResultFormatError:
    return ResultFormatError(
        f"{path} is damaged, was changed, or belongs to another run than the files beside it. "
        "Run it again, or restore all of its files."
    )


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _check_keys(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(entries)
    if len(named) < len(entries):
        raise ValueError("A key stands twice in an object.")
    return named


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    path = path.with_suffix(".safetensors")
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise _damaged_error(path)
        return deserialised(content)
    except (OSError, SafetensorError) as error:
        raise _damaged_error(path) from error


@cache
def saved_fields(cls: type) -> dict[str, Any]:
    """Annotation of each field that is saved."""
    hints = get_type_hints(cls)
    return {
        each.name: hints[each.name]
        for each in fields(cls)
        if each.init and each.metadata.get("saved", True)
    }


def is_tensor(annotation: Any) -> bool:
    """Whether a value of an annotation is a tensor."""
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


def has_spec(annotation: Any) -> bool:
    """Whether a class has a description of its own: `spec`, `from_spec`, and its type `Spec`."""
    return hasattr(annotation, "Spec")


def without_none(annotation: Any) -> Any:
    """An optional annotation without its None; others as they are."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [each for each in get_args(annotation) if each is not types.NoneType]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def item_of(annotation: Any) -> Any:
    """Class of the parts of a tuple of dataclasses; None for other annotations."""
    arguments = get_args(annotation)
    is_tuple = get_origin(annotation) is tuple and len(arguments) == 2
    return arguments[0] if is_tuple and is_dataclass(arguments[0]) else None


@cache
def document_model(cls: type, inline: bool) -> type[BaseModel]:
    """The pydantic model of what a document holds of a dataclass."""
    entries: dict[str, Any] = {}
    for name, annotation in saved_fields(cls).items():
        entry = _json_type(annotation, inline, cls)
        if entry is not None:
            entries[name] = (entry, ...)
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    return create_model(cls.__name__, __config__=config, **entries)


def _json_type(annotation: Any, inline: bool, within: type) -> Any:
    """Type of a field in a document; None for a tensor that lies beside it."""
    bare = without_none(annotation)
    optional = bare is not annotation
    if is_tensor(bare):
        if not inline:
            return None
        entry: Any = float
        for _ in bare.dims:
            entry = list[entry]
    elif has_spec(bare):
        entry = bare.Spec
    elif bare is within:
        return f"{within.__name__} | None"
    elif is_dataclass(bare):
        entry = document_model(bare, inline)  # type: ignore[arg-type]
    elif (item := item_of(bare)) is not None:
        entry = tuple[document_model(item, inline), ...]
    else:
        return annotation
    return Union[entry, None] if optional else entry  # noqa: UP007


def _encoded(value: Any, annotation: Any, name: str, tensors: dict[str, Tensor] | None) -> Any:
    """A value in values of JSON; its tensors go to `tensors`, if that is given."""
    bare = without_none(annotation)
    if value is None:
        return None
    if is_tensor(bare):
        if tensors is None:
            return value.tolist()
        tensors[name] = value
        return None
    if has_spec(bare):
        return value.spec()
    if is_dataclass(bare):
        entries = {
            each: _encoded(getattr(value, each), kind, f"{name}.{each}".lstrip("."), tensors)
            for each, kind in saved_fields(bare).items()  # type: ignore[arg-type]
        }
        held = document_model(bare, tensors is None).model_fields  # type: ignore[arg-type]
        return {each: entry for each, entry in entries.items() if each in held}
    item = item_of(bare)
    if item is not None:
        return [_encoded(each, item, f"{name}.{i}", tensors) for i, each in enumerate(value)]
    return value


def _decoded(entry: Any, annotation: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value from its entry; takes its tensors out of `tensors`.

    A ValueError names a tensor that is missing, or is of another type.
    """
    bare = without_none(annotation)
    if is_tensor(bare):
        value = tensors.pop(name, None) if entry is None else torch.tensor(entry)
        if entry is not None and "int64" in bare.dtypes:
            value = torch.tensor(entry).long()  # Lists in documents are read as floats.
        if value is None and bare is annotation:
            raise ValueError(f"the tensor {name} is missing")
        if value is not None and not isinstance(value, bare):
            raise ValueError(f"{name} is {value.dtype} of shape {tuple(value.shape)}, not {bare}")
        return value
    if entry is None:
        return None
    if has_spec(bare):
        return bare.from_spec(entry)
    if is_dataclass(bare):
        values = {
            each: _decoded(getattr(entry, each, None), kind, f"{name}.{each}".lstrip("."), tensors)
            for each, kind in saved_fields(bare).items()  # type: ignore[arg-type]
        }
        return bare(**values)  # type: ignore[operator]
    item = item_of(bare)
    if item is not None:
        return tuple(_decoded(each, item, f"{name}.{i}", tensors) for i, each in enumerate(entry))
    return entry
