"""Lists the versions of the site: `python docs/versions.py SITE`.

Each folder of SITE with an `index.html` is a version: `dev`, and one for each release, such as
`0.2`. The list `versions.json` is what the sidebar of every version reads, and `index.html` leads
to the newest release, or to `dev` before there is one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

_REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>tracekit</title>'
    '<meta http-equiv="refresh" content="0; url={name}/"><a href="{name}/">tracekit {name}</a>\n'
)


def write_versions(site: Path) -> list[str]:
    """Writes list and entry page of the versions in a folder; returns their names, newest first.

    Raises:
        SystemExit: The folder holds no version.
    """
    names = [page.parent.name for page in site.glob("*/index.html")]
    releases = [name for name in names if re.fullmatch(r"\d+(\.\d+)*", name)]
    releases.sort(key=lambda name: [*map(int, name.split("."))], reverse=True)
    names = ["dev"] * ("dev" in names) + releases
    if not names:
        raise SystemExit(
            f"{site} holds no version. Build one first: sphinx-build -b html docs {site}/dev"
        )
    newest = releases[0] if releases else "dev"
    titles = {"dev": "dev (unreleased)", newest: f"{newest} (newest release)"} if releases else {}
    entries = [{"name": name, "title": titles.get(name, name)} for name in names]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(_REDIRECT.format(name=newest), encoding="utf-8")
    # Programs look for it at the root of the site.
    if (site / newest / "llms.txt").exists():
        shutil.copyfile(site / newest / "llms.txt", site / "llms.txt")
    return names


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the folder that holds the versions: python docs/versions.py SITE")
    write_versions(Path(sys.argv[1]))
