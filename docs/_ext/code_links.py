"""Names of the API in running text, such as `tk.Tracer` or `tracer.run(...)`, link to their entry.

sphinx-codeautolink does this for code blocks. A name that no entry has stays plain code.
"""

from __future__ import annotations

import ast
import re
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

_NAME = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:\(.*\))?$", re.DOTALL)
_VALUES = {
    "tk": "tracekit",
    "tracer": "tracekit.Tracer",
    "pairs": "tracekit.PromptPairs",
    "result": "tracekit.TraceResult",
    "curve": "tracekit.results.TraceCurve",
    "front": "tracekit.ParetoFront",
    "grid": "tracekit.results.InteractionGrid",
    "engine": "tracekit.engine.Engine",
    "runs": "tracekit.runs.Runs",
    "view": "tracekit.explore.explorer.Explorer",
}
"""What the pages call a value -> its type."""


def full_name(text: str, objects: dict[str, Any]) -> str | None:
    """The documented name that a piece of code stands for; None if there is none."""
    match = _NAME.match(text)
    if match is None:
        return None
    name = match["name"]
    first, _, rest = name.partition(".")
    candidates = [name]
    if rest and first in _VALUES:
        candidates.append(f"{_VALUES[first]}.{rest}")
    elif rest:
        candidates.append(f"tracekit.{name}")
    elif name[:1].isupper():
        # `Tracer`, `BudgetError`: not `seed`, which is a name of many things.
        candidates += [f"tracekit.{name}", f"tracekit.errors.{name}"]
    return next((each for each in candidates if each in objects), None)


class _LinkCode(SphinxPostTransform):
    """Puts a link around code that names an entry."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        """Changes the page."""
        python = self.env.domains["py"]
        objects = python.objects  # type: ignore[attr-defined]
        for node in list(self.document.findall(nodes.literal)):
            if _is_linked(node):
                continue
            name = full_name(node.astext(), objects)
            if name is None:
                continue
            link = self.env.app.builder
            entry = objects[name]
            if self.env.docname == entry.docname and _is_inside(node, entry.node_id):
                continue
            reference = nodes.reference("", "", internal=True, reftitle=name)
            reference["refuri"] = (
                link.get_relative_uri(self.env.docname, entry.docname) + "#" + entry.node_id
            )
            node.replace_self(reference)
            reference += node


def _is_linked(node: nodes.Node) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(
            parent, (nodes.reference, addnodes.pending_xref, nodes.title, addnodes.desc_signature)
        ):
            return True
        parent = parent.parent
    return False


def _is_inside(node: nodes.Node, node_id: str) -> bool:
    """Whether the text is that of the entry itself."""
    parent = node.parent
    while parent is not None:
        if isinstance(parent, addnodes.desc):
            return node_id in parent[0].get("ids", ())
        parent = parent.parent
    return False


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contnode: nodes.TextElement
) -> nodes.reference | None:
    """Finds `tracekit.Tracer` for a type that is called `tracekit.tracer.Tracer` or `Tracer`."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domains["py"].objects  # type: ignore[attr-defined]
    target = str(node.get("reftarget", ""))
    if "." in target and not target.startswith("tracekit."):
        return None
    last = target.rpartition(".")[2]
    if not last[:1].isupper():
        return None
    name = full_name(last, objects)
    if name is None:
        ends = [each for each in objects if each.endswith(f".{last}")]
        name = ends[0] if len(ends) == 1 else None
    if name is None:
        return None
    entry = objects[name]
    reference = nodes.reference("", "", internal=True, reftitle=name)
    reference["refuri"] = (
        app.builder.get_relative_uri(env.docname, entry.docname) + "#" + entry.node_id
    )
    reference += contnode
    return reference


def _unlink_names_of_axes(app: Sphinx, document: nodes.document) -> None:
    """In `Float[Tensor, "example"]`, a type of the signature, `example` names an axis, no value."""
    for node in list(document.findall(addnodes.pending_xref)):
        last = str(node.get("reftarget", "")).rpartition(".")[2]
        if node.get("refdomain") == "py" and node.get("reftype") == "class" and last[:1].islower():
            short = [c for c in node.children if isinstance(c, addnodes.pending_xref_condition)]
            shown = short[0] if short else node
            node.replace_self(shown.children)


def public_places() -> dict[str, str]:
    """Where a public name is defined -> the name that has the entry, with members of classes."""
    import tracekit

    places: dict[str, str] = {}
    for name in sorted({*tracekit.__all__} - {"__version__"}):
        value = getattr(tracekit, name)
        if isinstance(value, ModuleType):
            continue
        origin = f"{value.__module__}.{value.__qualname__}"
        places[origin] = f"tracekit.{name}"
        for member in dir(value) if isinstance(value, type) else ():
            places[f"{origin}.{member}"] = f"tracekit.{name}.{member}"
    return places


def _tell_public_places(app: Sphinx, config: Config) -> None:
    config["codeautolink_inventory_map"] = public_places()


def only_own_imports(source: str) -> tuple[str, str]:
    """A code block, and what sphinx-codeautolink reads of it: it imports what a block imports."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source, ""
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = [node.module] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
        if any((name or "").partition(".")[0] != "tracekit" for name in names):
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [" " * node.col_offset + "pass"] * (
                end - node.lineno + 1
            )
    return source, "\n".join(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers all of them."""
    app.connect("config-inited", _tell_public_places)
    app.add_post_transform(_LinkCode)
    app.connect("doctree-read", _unlink_names_of_axes)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
