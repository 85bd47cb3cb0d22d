"""How Sphinx builds the site: `sphinx-build -W -b html docs site`.

Pages are Markdown (MyST), the notebooks of `notebooks/` are pages with the outputs that they hold,
API pages are the docstrings, the JSON Schemas are made from the classes, and `trouble.md` from the
table of `trouble_entries.py`. No page is executed and nothing is fetched.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "_ext")]

from docs import trouble_entries  # noqa: E402
from docs.schemas.make import write  # noqa: E402
from tracekit import __version__  # noqa: E402

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def copy_notebooks(source: Path, target: Path) -> None:
    """Copies notebooks that are new or changed, and removes copies whose notebook is gone."""
    target.mkdir(exist_ok=True)
    paths = {path.name: path for path in source.glob("*.ipynb")}
    for copy in target.glob("*.ipynb"):
        if copy.name not in paths:
            copy.unlink()
    for name, path in paths.items():
        copy = target / name
        # Only a change of the time makes Sphinx read a page again.
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copy)


copy_notebooks(ROOT / "notebooks", DOCS / "notebooks")
write(DOCS / "schemas")
trouble_entries.write(DOCS / "trouble.md")

project = "tracekit"
author = "The tracekit developers"
copyright = "the tracekit developers"
release = version = __version__
html_title = "tracekit"

extensions = [
    "myst_nb",  # brings myst_parser
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_codeautolink",
    "markdown_docstrings",
    "code_links",
]
# Types of other libraries become links where the network may be asked for their lists of names.
if os.environ.get("TRACEKIT_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
        "plotly": ("https://plotly.com/python-api-reference", None),
        "transformers": ("https://huggingface.co/docs/transformers/main/en", None),
    }
exclude_patterns = ["_build", "_ext", "_templates", "images", "schemas", "**.ipynb_checkpoints"]

# ---- pages ------------------------------------------------------------------------------------

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
# A wrong link is an error (`-W`).
nitpicky = False

# ---- notebooks: what they hold is shown, nothing runs -----------------------------------------

nb_execution_mode = "off"
nb_ipywidgets_js = {}  # else two files of a content network are asked for
nb_merge_streams = True

# ---- API ----------------------------------------------------------------------------------------

TYPES = {
    "tracekit.data.prompts": ["OnMismatch"],
    "tracekit.data.spans": ["Spans"],
    "tracekit.engine.layout": ["Positions"],
    "tracekit.search.objectives": ["Objective"],
    "tracekit.engine.sources": ["Source"],
    "tracekit.components.kinds": ["Axis"],
    "tracekit.components.masks": ["Mask", "BinaryMask"],
    "tracekit.metrics": [
        "Effects",
        "MetricFunction",
        "Reading",
    ],
    "tracekit.models.hooked": ["HookedModel"],
    "tracekit.results.interactions": ["PairKind"],
    "tracekit.search.learned.reward": ["Reward"],
    "tracekit.search.learned.pgbct": ["Schedule"],
    "tracekit.components.registry": ["Components"],
    "tracekit.tracer": ["By"],
    "tracekit._util.names": [
        "ContinuationMean",
        "Direction",
        "KindName",
        "MethodChoice",
        "MethodName",
        "MetricChoice",
        "MetricName",
        "ObjectiveName",
        "SourceName",
    ],
}
"""Types that signatures name rather than spell out, by the module that has them. The page
`api/types` has their entries."""
autodoc_type_aliases = {
    name: f"{module}.{name}" for module, names in TYPES.items() for name in names
}
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autoclass_content = "both"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
maximum_signature_line_length = 78
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

codeautolink_concat_default = True
codeautolink_autodoc_inject = False
codeautolink_custom_blocks = {
    language: "code_links.only_own_imports" for language in ("python", "ipython", "ipython3")
}
# sphinx-codeautolink puts functions in the place of these names.
suppress_warnings = ["config.cache"]

# ---- looks --------------------------------------------------------------------------------------

html_theme = "furo"
html_static_path = ["_static"]
# For programs that look for it at the root of the site; the wheel has it too.
html_extra_path = ["../tracekit/llms.txt"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
html_copy_source = False
html_show_sourcelink = False
templates_path = ["_templates"]
html_theme_options = {"top_of_page_buttons": []}
if "Repository" in _PROJECT["urls"]:
    html_theme_options |= {
        "source_repository": _PROJECT["urls"]["Repository"],
        "source_branch": "main",
        "source_directory": "docs/",
    }
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

os.environ.setdefault("HF_HUB_OFFLINE", "1")
