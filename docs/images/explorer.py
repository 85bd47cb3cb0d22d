"""Draws the picture of the explorer: `python docs/images/explorer.py`.

Runs the first code block of `docs/explorer.md`, saves the page of its view, and takes a picture of
it. Needs playwright, and Chromium as `/usr/bin/chromium`.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parent
CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    """Draws it."""
    text = (FOLDER.parent / "explorer.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    view = names["view"]
    view.measure_singles()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = view.save(Path(folder) / "explore.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": 1000, "height": 400}, device_scale_factor=1.5, color_scheme="light"
        )
        page.goto(page_file.as_uri())
        page.locator(".tk-strip").focus()
        page.keyboard.press("End")
        page.locator('[data-index="8"]').hover()
        page.locator("main").screenshot(path=FOLDER / "explorer.png")
        browser.close()


if __name__ == "__main__":
    main()
