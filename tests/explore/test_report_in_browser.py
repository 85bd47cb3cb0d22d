"""The page of a report in a real browser: everything is within its card, at every width."""

from __future__ import annotations

import pytest

import tracekit as tk

pytest.importorskip("anywidget")
pytest.importorskip("playwright")

_FAULTS = """() => {
  const faults = [];
  const right = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > right) faults.push("the page scrolls");
  for (const part of document.querySelectorAll("section, section > *")) {
    const { left, right: end } = part.getBoundingClientRect();
    if (left < 0 || end > right + 1) faults.push(`${part.className || part.tagName} is cut`);
  }
  for (const box of document.querySelectorAll(".table, .figures > div")) {
    box.scrollLeft = box.scrollWidth;
    const inner = box.querySelector("tr:last-child > :last-child, .plot-container");
    const beyond = inner.getBoundingClientRect().right - box.getBoundingClientRect().right;
    if (beyond > 1) faults.push(`${box.className || "figure"} is beyond its card`);
  }
  return faults;
}"""


@pytest.mark.slow
def test_tables_and_figures_scroll_within_their_cards(chromium, demo_model, tmp_path):
    facts = tk.load_dataset("demo-facts", demo_model)
    tracer = tk.Tracer(
        demo_model, facts[:8], "attention-patterns", "probability-drop", held_out=facts[8:16]
    )
    results = [tracer.run(method, budget=12) for method in ("top-k", "greedy")]
    results.append(tracer.explain(["L0H4", "L1H4", "L1H7"]))
    page = tk.report([*results, tracer.pairs], tmp_path / "report.html")

    async def scenario():
        async with chromium.page() as view:
            await view.goto(page.as_uri())
            for width in (1400, 420):
                await view.set_viewport_size({"width": width, "height": 900})
                assert await view.evaluate(_FAULTS) == [], width
            boxes = view.locator(".table")
            scrolled = "each => each.some(box => box.scrollWidth > box.clientWidth)"
            assert await boxes.evaluate_all(scrolled)

    chromium.run(scenario())
