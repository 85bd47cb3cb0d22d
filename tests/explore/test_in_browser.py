"""The explorer in a real browser, joined to a real tracer."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.effects import masked_log_probs
from tracekit.engine.gradients import stream_predictions
from tracekit.explore import exploration
from tracekit.explore.exploration import set_key

pytest.importorskip("anywidget")
pytest.importorskip("playwright")


@pytest.fixture(scope="module")
def facts(demo_model):
    return tk.load_dataset("demo-facts", demo_model)[:16]


@pytest.fixture(scope="module")
def heads(demo_model, facts):
    """32 heads, and the data set in four batches."""
    return tk.Tracer(demo_model, facts, "attention-patterns", "probability-drop", max_batch_size=4)


@pytest.fixture(scope="module")
def front(heads):
    return heads.pareto(max_budget=4, statistics=False, max_passes=60)


def three(value: float) -> str:
    """A number as the view writes it."""
    rounded = float(f"{value:.3g}")
    text = f"{rounded:.12f}".rstrip("0").rstrip(".")
    if 0 < abs(value) < 1e-4:
        mantissa, exponent = f"{rounded:.2e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", "\u2212")


def head(layer: int, index: int) -> tk.Component:
    return tk.Component("attention-patterns", layer, index)


@pytest.mark.slow
def test_clicks_show_the_measured_effect_of_the_set_on_screen(chromium, heads):
    async def scenario():
        async with chromium.shown(lambda: heads.explore()) as view:
            assert (await view.status()).startswith("0 of 32 attention-patterns \u00b7 effect 0 ")
            await view.cell("L1H4").click()
            await view.cell("L1H7").click()
            members = [head(1, 4), head(1, 7)]
            await view.page.wait_for_selector('.tk-status[data-key="12,15"][data-measured=true]')
            effect = heads.evaluate(members)
            assert (
                f"2 of 32 attention-patterns \u00b7 effect {three(effect)} [" in await view.status()
            )
            assert await view.selected() == ["L1H4", "L1H7"]
            # Both alone are measured unasked.
            alone = sum(heads.evaluate([member]) for member in members)
            text = f"alone they sum to {three(alone)} (interaction +{three(effect - alone)})"
            await view.page.get_by_text(text).wait_for()
            assert (
                f"{100 * effect / heads.full_effect:.0f} % of the effect of all"
                in await view.status()
            )
            # In the next cell:
            assert view.widget.components == members
            assert view.widget.effect == pytest.approx(effect, abs=1e-7)
            torch.testing.assert_close(
                view.widget.per_example, heads.evaluate(members, per_example=True)
            )
            view.widget.components = [head(0, 0)]
            await view.page.wait_for_selector('.tk-status[data-key="0"][data-measured=true]')
            assert await view.selected() == ["L0H0"]
            assert f"effect {three(heads.evaluate([head(0, 0)]))} [" in await view.status()

    chromium.run(scenario())


@pytest.mark.slow
def test_hovering_says_the_predicted_gain_of_one_gradient(chromium, heads):
    async def scenario():
        async with chromium.shown(lambda: heads.explore([head(1, 4)])) as view:
            gains = heads.engine.predict_changes((12,)).predicted_effects
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            hover = view.page.locator(".tk-hover")
            await view.cell("L1H7").hover()
            text = await hover.inner_text()
            assert text.startswith("L1H7 \u00b7 off")
            assert f"predicted +{three(gains[15].item())} if added" in text
            assert "measured" not in text
            await view.cell("L1H4").hover()
            text = await hover.inner_text()
            assert text.startswith("L1H4 \u00b7 on \u00b7 alone ")
            assert f"predicted {three(-gains[12].item())} if removed" in text
            # The darkest cell is the one with the largest gain.
            shares = await view.page.evaluate(
                """() => [...document.querySelectorAll("[data-index]")].map((cell) => [
                     +cell.dataset.index,
                     +(cell.style.background.match(/([\\d.]+)%/) ?? [0, 0])[1],
                   ])"""
            )
            assert max(shares, key=lambda pair: pair[1])[0] == int(gains.abs().argmax())
            # Measured since, it says so beside the prediction.
            await view.cell("L1H7").click()
            await view.page.wait_for_selector('.tk-status[data-key="12,15"][data-measured=true]')
            await view.button("Undo").click()
            await view.cell("L1H7").hover()
            both = heads.evaluate([head(1, 4), head(1, 7)]) - heads.evaluate([head(1, 4)])
            assert f"measured +{three(both)} if added" in await hover.inner_text()

    chromium.run(scenario())


@pytest.mark.slow
def test_hovering_moves_nothing(chromium, heads):
    """In JupyterLab, which scrolls along, a view that shrank under the pointer flickered on."""

    async def scenario():
        async with chromium.shown(lambda: heads.explore([head(1, 4)])) as view:

            async def height():
                return (await view.page.locator(".tk-explore").bounding_box())["height"]

            # The hint takes two lines here, what a cell says takes one.
            await view.page.set_viewport_size({"width": 480, "height": 900})
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            await view.page.mouse.move(0, 0)
            hint = await height()
            await view.cell("L1H7").hover()
            assert await height() == hint
            await view.page.mouse.move(0, 0)
            assert await height() == hint
            # The same holds of what a tick says of its example.
            await view.page.locator("[role=option]").first.hover(force=True)
            example = await height()
            assert example > hint
            await view.page.mouse.move(0, 0)
            assert await height() == example
            # Where the view is wider it takes less again.
            await view.page.set_viewport_size({"width": 900, "height": 900})
            await asyncio.sleep(0.2)
            hover = await view.page.locator(".tk-hover").bounding_box()
            assert hover["height"] < 30

    chromium.run(scenario())


@pytest.mark.slow
def test_dragging_layers_complement_undo_and_pins(chromium, heads):
    async def scenario():
        async with chromium.shown(lambda: heads.explore()) as view:
            mouse = view.page.mouse
            boxes = [await view.cell(label).bounding_box() for label in ("L0H1", "L1H3")]
            first, last = ((b["x"] + b["width"] / 2, b["y"] + b["height"] / 2) for b in boxes)
            await mouse.move(*first)
            await mouse.down()
            await mouse.move(*last, steps=4)
            await mouse.up()
            rectangle = ["L0H1", "L0H2", "L0H3", "L1H1", "L1H2", "L1H3"]
            assert await view.selected() == rectangle
            await view.status()
            await view.button("Pin A").click()
            await view.button("Switch all of layer 3").click()
            assert await view.selected() == [*rectangle, *(f"L3H{i}" for i in range(8))]
            await view.button("Switch all of layer 3").click()
            await view.button("Complement").click()
            assert len(await view.selected()) == 26
            await view.status()
            await view.button("Pin B").click()
            a, b = (heads.evaluate(m) for m in (view.widget.pins["A"], view.widget.pins["B"]))
            line = f"A and B: 0 shared, Jaccard 0 \u00b7 B less A +{three(b - a)}"
            await view.page.get_by_text(line).wait_for()
            await view.page.keyboard.press("Control+z")
            assert await view.selected() == rectangle
            await view.page.keyboard.press("Control+Shift+z")
            assert len(await view.selected()) == 26
            await view.button("Go to A").click()
            assert await view.selected() == rectangle
            for _ in range(100):
                await asyncio.sleep(0.01)
                if view.widget.labels == rectangle:
                    break
            assert view.widget.labels == rectangle
            assert view.widget.exploration.position == 5

    chromium.run(scenario())


@pytest.mark.slow
def test_everything_by_keyboard_and_for_screen_readers(chromium, heads):
    async def scenario():
        async with chromium.shown(lambda: heads.explore([head(0, 0)])) as view:
            page, press = view.page, view.page.keyboard.press
            grid = page.get_by_role("grid", name="attention-patterns")
            assert await grid.get_by_role("gridcell").count() == 32
            assert await grid.get_by_role("rowheader").count() == 4
            # One stop of the tab key in all of the grid.
            assert await grid.locator('[data-index][tabindex="0"]').count() == 1
            await grid.locator('[data-index][tabindex="0"]').focus()
            for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Space"):
                await press(key)
            assert await view.selected() == ["L0H0", "L1H2"]
            focused = page.locator("[data-index]:focus")
            assert (await focused.get_attribute("aria-label")).startswith("L1H2 \u00b7 on")
            for key in ("End", "ArrowRight", "ArrowDown", "Enter"):
                await press(key)
            assert await view.selected() == ["L0H0", "L1H2", "L2H7"]
            assert await page.get_by_role("status").get_attribute("aria-live") == "polite"
            await view.status()
            # Examples: a list box, in the order of their effects.
            effects = heads.evaluate(view.widget.components, per_example=True)
            order = sorted(range(16), key=lambda i: (effects[i].item(), i))
            strip = page.get_by_role("listbox")
            assert await strip.get_by_role("option").count() == 16
            await strip.focus()
            await press("End")
            assert f"Example {order[-1]} " in await page.locator(".tk-detail").inner_text()
            await press("ArrowLeft")
            assert f"Example {order[-2]} " in await page.locator(".tk-detail").inner_text()
            active = await strip.get_attribute("aria-activedescendant")
            label = await page.locator(f"#{active}").get_attribute("aria-label")
            assert label == f"example {order[-2]}, effect {three(effects[order[-2]].item())}"
            # Enter pins it: cells are coloured by what is predicted on that example.
            await press("Enter")
            await page.get_by_text(f"predicted gain on example {order[-2]}").wait_for()
            members = view.widget.exploration.members
            rows = {}
            for batch in stream_predictions(heads.engine, members):
                rows |= dict(zip(batch.examples.tolist(), batch.predicted_effects, strict=True))
            largest = rows[order[-2]].abs().max().item()
            legend = await page.locator(".tk-legend").inner_text()
            assert f"+{three(largest)}" in legend

    chromium.run(scenario())


@pytest.mark.slow
def test_examples_mark_the_changed_token_and_probabilities(chromium, demo_model):
    pairs = tk.load_dataset("demo-bias", demo_model)[:8]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "odds-ratio")

    async def scenario():
        async with chromium.shown(
            lambda: tracer.explore([tk.Component("head-outputs", 1, 2)])
        ) as view:
            await view.status()
            # Until then ticks are drawn again.
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            number = 3
            await view.page.locator(f"[id$=example{number}]").hover(force=True)
            detail = view.page.locator(".tk-detail")
            after = masked_log_probs(
                tracer.engine,
                tk.components.masks.from_indices(view.widget.exploration.members, 32),
            )
            clean = tracer.engine.clean
            shown_number = int(re.search(r"Example (\d+)", await detail.inner_text())[1])
            change = f"P(x) {three(clean.x[shown_number].exp().item())} \u2192 "
            assert change + three(after.x[shown_number].exp().item()) in await detail.inner_text()
            pair = pairs[shown_number]
            own, other = pair.prompt_ids, pair.counterfactual_ids
            changed = [i for i, (a, b) in enumerate(zip(own, other, strict=True)) if a != b]
            marked = await detail.locator(".tk-changed").all_inner_texts()
            words = [pairs.token_texts[ids[i]] for ids in (own, other) for i in changed]
            assert [text.strip() for text in marked] == [word.strip() for word in words]
            assert changed

    chromium.run(scenario())


@pytest.mark.slow
def test_a_set_as_a_circuit_its_paths_and_what_the_model_writes(chromium, demo_model, tmp_path):
    pairs = tk.load_dataset("demo-bias", demo_model)[:16]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs+mlp-blocks", "odds-ratio")
    result = tracer.run("top-k", budget=6)
    paths = tracer.paths(result.labels, by_input=False)
    between = {
        f"{tracer.registry.index(row['sender'])}-{tracer.registry.index(row['receiver'])}"
        for row in paths.table[paths.table["is_apart"]].to_dict("records")
        if {row["sender"], row["receiver"]} <= set(result.labels)
    }
    prompt, other = "the maid met the pilot when she", "the maid met the pilot when he"

    async def scenario():
        async with chromium.shown(lambda: tracer.explore(result, paths=paths)) as view:
            page = view.page
            scores = result.faithfulness()
            words = []
            for name in ("faithfulness", "completeness"):
                (value,), (ends,) = getattr(scores, name), getattr(scores, f"{name}_intervals")
                words.append(f"{name} {three(value)} [{three(ends[0])}, {three(ends[1])}]")
            await page.get_by_text(" \u00b7 ".join(words)).wait_for()
            ends = [three(round(100 * end)) for end in scores.share_of_full_intervals[0]]
            assert f" % of the effect of all [{ends[0]}, {ends[1]}] \u00b7 " in await view.status()
            drawn = "all => all.map(path => path.dataset.path)"
            arrows = page.locator(".tk-arrows path[data-path]")
            assert set(await arrows.evaluate_all(drawn)) == between != set()
            strongest = max(paths.table.to_dict("records"), key=lambda row: abs(row["effect"]))
            member = ({strongest["sender"], strongest["receiver"]} & set(result.labels)).pop()
            await view.cell(member).hover()
            text = f"{strongest['sender']} \u2192 {strongest['receiver']} "
            assert text in await page.locator(".tk-hover").inner_text()
            # The prompt box: an error, then both texts, of this set only.
            first, second = await page.get_by_role("textbox").all()
            await first.fill(prompt)
            await second.fill("the maid")
            await second.press("Enter")
            await page.get_by_text("PairsError: 1 of 1 counterfactuals differ in length").wait_for()
            await second.fill(other)
            await second.press("Enter")
            row = tracer.generate(result, prompt, other).table.iloc[0]
            assert row["clean"] != row["intervened"]
            written = page.locator(".tk-written")
            await page.get_by_text(f"with the set replaced: {row['intervened']}").wait_for()
            assert f"by itself: {row['clean']}" in await written.inner_text()
            await view.button("Clear").click()
            assert "Another set was on." in await written.inner_text()
            assert await arrows.count() == 0
            await first.press("Control+z")  # In the box, not in the set.
            assert await view.selected() == []
            await first.fill(prompt)
            await second.fill(other)
            await view.button("Undo").click()
            assert f"by itself: {row['clean']}" in await written.inner_text()
            # An answer to what stood in the box before is shown nowhere.
            late = {"kind": "written", "key": set_key(tiny.members_of(result)), "prompt": "the"}
            view.widget.send({**late, "other": other, "clean": "late", "intervened": "late"})
            await asyncio.sleep(0.1)
            assert f"by itself: {row['clean']}" in await written.inner_text()
            view.widget.save(tmp_path / "page.html")

    chromium.run(scenario())

    async def page_scenario():
        async with chromium.page() as page:
            await page.goto((tmp_path / "page.html").as_uri())
            assert "faithfulness" in await page.locator(".tk-circuit").inner_text()
            assert await page.locator(".tk-arrows path[data-path]").count() == len(between)
            assert await page.get_by_role("textbox").count() == 0

    chromium.run(page_scenario())


@pytest.mark.slow
def test_the_slider_moves_along_the_front(chromium, heads, front):
    async def scenario():
        async with chromium.shown(lambda: heads.explore(front)) as view:
            assert len(await view.selected()) == front.sizes[-1]
            slider = view.page.get_by_role("slider", name="Pareto front")
            await slider.focus()
            await view.page.keyboard.press("Home")
            assert await view.selected() == front[0].labels
            # Measured by the search: at once, and the same.
            assert f"effect {three(front[0].effect)}" in await view.status()
            text = await slider.get_attribute("aria-valuetext")
            assert text == f"{front.sizes[0]} attention-patterns"
            await view.cell("L3H3").click()
            assert await slider.get_attribute("aria-valuetext") == "the set is not on it"

    chromium.run(scenario())


@pytest.mark.slow
def test_the_latest_click_wins_and_an_effect_is_never_of_another_set(chromium, heads, monkeypatch):
    """Seven quick clicks: what was begun for the first ones is left, batch by batch."""
    seen = []
    stream = exploration.stream_effects

    def counted(data, mask):
        for batch in stream(data, mask):
            seen.append(tuple(mask.nonzero()[:, 0].tolist()))
            yield batch

    monkeypatch.setattr(exploration, "stream_effects", counted)

    async def scenario():
        async with chromium.shown(lambda: heads.explore([head(3, 0)])) as view:
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            seen.clear()
            wrong = """() => {
                window.pairs = [];
                const status = document.querySelector(".tk-status");
                new MutationObserver(() => {
                  const effect = status.querySelector(".tk-effect")?.textContent;
                  if (effect) window.pairs.push([status.dataset.key, effect]);
                }).observe(status, { childList: true, attributes: true, subtree: true });
                document.querySelectorAll('[data-index="0"], [data-index="1"], [data-index="2"],' +
                  '[data-index="3"], [data-index="4"], [data-index="5"], [data-index="6"]').forEach(
                  (cell) => {
                    cell.dispatchEvent(new PointerEvent("pointerdown", {bubbles: true, button: 0}));
                    window.dispatchEvent(new PointerEvent("pointerup"));
                  });
              }"""
            await view.page.evaluate(wrong)
            await view.page.wait_for_selector('.tk-status[data-key="0-6,24"][data-measured=true]')
            shown_pairs = await view.page.evaluate("window.pairs")
            return shown_pairs, view.widget

    shown_pairs, widget = chromium.run(scenario())
    assert seen.count((*range(7), 24)) == 4
    passes_for_others = [members for members in seen if members != (*range(7), 24)]
    assert len([m for m in passes_for_others if len(m) > 1]) < 6 * 4
    assert shown_pairs
    for key, text in shown_pairs:
        members = [i for run in key.split(",") for i in _expanded(run)]
        effect = heads.evaluate(tk.components.masks.from_indices(members, 32))
        assert text.startswith(f"effect {three(effect)} ")
    assert widget.exploration.members == (*range(7), 24)


def _expanded(run: str) -> range:
    low, _, high = run.partition("-")
    return range(int(low), int(high or low) + 1)


HOSTILE = (
    '<img src=x onerror="window.hacked=1">\'\u001b[31mred'
    "</script ><script>window.hacked=1</script><!--"
)


def hostile_tracer(model):
    """Names and tokens that are markup, where they are shown as such."""
    pairs = tiny.pairs(4)
    named = replace(
        pairs,
        name=HOSTILE,
        token_texts=dict.fromkeys(range(tiny.VOCABULARY), HOSTILE),
    )
    kind = tk.Kind(
        name="odd<b>",
        hook="hook_resid_post",
        axes=("batch", "pos", "component"),
        width="d_model",
        label='<i>{layer}</i>"{index}',
    )
    return tk.Tracer(model, named, kind, metric="probability-drop", layers=[1], indices=[0, 3])


@pytest.mark.slow
def test_where_two_changes_cross_what_is_on_screen_holds(chromium, heads):
    async def scenario():
        async with chromium.shown(lambda: heads.explore()) as view:
            await view.cell("L0H2").click()
            await view.status()
            n_received = len(view.received)
            # As if Python had meanwhile been set to another set.
            view.widget.exploration.select([9])
            view.widget.send({"kind": "seen", "stamp": 1, "key": "9"})
            for _ in range(200):
                await asyncio.sleep(0.01)
                if len(view.received) > n_received:
                    break
            assert view.widget.labels == ["L0H2"] == await view.selected()

    chromium.run(scenario())


@pytest.mark.slow
def test_nothing_from_outside_becomes_markup(chromium, model, tmp_path):
    tracer = hostile_tracer(model)

    async def scenario():
        async with chromium.shown(lambda: tracer.explore()) as view:
            await view.page.locator("[data-index]").first.click()
            await view.status()
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            await view.page.locator("[role=option]").first.hover(force=True)
            await view.button("Copy as Python").click()
            text = await view.page.locator(".tk-explore").inner_text()
            assert "<img src=x" in text
            assert '<i>1</i>"0' in text
            assert "\u001b" not in text
            assert await view.page.locator("img, i, b, script").count() == 0
            assert await view.page.evaluate("window.hacked") is None
            code = await view.page.locator(".tk-code").input_value()
            view.widget.save(tmp_path / "page.html")
            return code

    code = chromium.run(scenario())
    assert code.startswith(
        'members = [\n    tk.Component("odd<b>", 1, 0),\n]\ntracer.evaluate(members)'
    )
    values = {"tk": tk, "tracer": tracer}
    exec(code, values)
    assert values["members"] == [tk.Component("odd<b>", 1, 0)]

    async def page_scenario():
        async with chromium.page() as page:
            await page.goto((tmp_path / "page.html").as_uri())
            await page.locator("[data-index]").last.click()
            assert "<img src=x" in await page.locator(".tk-explore").inner_text()
            assert await page.locator("img, .tk-explore i, .tk-explore b").count() == 0
            assert await page.evaluate("window.hacked") is None

    chromium.run(page_scenario())


@pytest.mark.slow
def test_a_kernel_that_dies_is_said_and_costs_no_result(chromium, heads, tmp_path):
    async def scenario():
        async with chromium.shown(lambda: heads.explore([head(1, 4)])) as view:
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            await view.cell("L1H7").click()
            await view.page.wait_for_selector('.tk-status[data-key="12,15"][data-measured=true]')
            # The kernel measures single components after the set; the text then has their sum.
            summed = view.page.locator(".tk-status", has_text="alone they sum to")
            await summed.wait_for()
            kept = await view.status()
            view.is_cut = True
            await view.page.evaluate("window.kernelDies()")
            alert = view.page.locator(".tk-problem[role=alert]")
            assert (await alert.inner_text()).startswith("The kernel has stopped or was restarted.")
            assert await view.status() == kept
            assert await view.page.locator(".tk-saved").inner_text() == ""
            await view.button("Undo").click()
            alone = await view.status()
            assert f"effect {three(heads.evaluate([head(1, 4)]))} " in alone
            # A set that was not measured has no effect, only a prediction.
            await view.cell("L0H5").click()
            status = view.page.locator(".tk-status")
            assert await status.get_attribute("data-measured") == "false"
            text = await status.inner_text()
            gain = heads.engine.predict_changes((12,)).predicted_effects[5].item()
            value = heads.evaluate([head(1, 4)]) + gain
            assert text.startswith(
                "2 of 32 attention-patterns \u00b7 not measured \u00b7 predicted "
            )
            assert text.endswith(f"{three(value)} from the set without L0H5")
            assert "effect" not in text
            async with view.page.expect_download() as download:
                await view.button("Save page").click()
            await (await download.value).save_as(tmp_path / "kept.html")
            return kept

    kept = chromium.run(scenario())

    async def page_scenario():
        async with chromium.page() as page:
            await page.goto((tmp_path / "kept.html").as_uri())
            assert "not measured" in await page.locator(".tk-status").inner_text()
            # It says what it is, keeps the colours of the set before, and marks what leads on.
            said = await page.locator(".tk-saved").inner_text()
            assert said.startswith("A saved page without the model. ")
            known = (
                "predicted gain of having the component in the set, for an earlier set (L1H4), as"
            )
            assert known in await page.locator(".tk-legend").inner_text()
            leads = await page.locator(".tk-leads").evaluate_all(
                "(all) => all.map(c => c.dataset.index)"
            )
            assert "5" in leads
            assert "31" not in leads
            await page.locator('[data-index="5"]').click()
            await page.locator('[data-index="15"]').click()
            # What it took to measure says nothing here.
            said = await page.locator(".tk-status").inner_text()
            assert f"{said} \u00b7 " == kept[: kept.rindex(" \u00b7 ") + 3]
            assert kept.endswith(" ms")

    chromium.run(page_scenario())


@pytest.mark.slow
def test_a_saved_page_says_what_its_numbers_are(chromium, demo_model, tmp_path):
    """On which examples, by what brackets, how many sets; and what was never measured alone."""
    pairs = tk.load_dataset("demo-facts", demo_model)
    tracer = tk.Tracer(demo_model, pairs[:16], metric="probability-drop", held_out=pairs[16:32])
    result = tracer.run("greedy", budget=2)
    view = tracer.explore(result)
    path = view.save(tmp_path / "explore.html", seconds=0)
    alone = [view.exploration.alone(number) for number in range(32)]
    assert None in alone

    async def scenario():
        async with chromium.page() as page:
            await page.goto(path.as_uri())
            status = page.locator(".tk-status")
            text = await status.inner_text()
            low, high = map(three, result.held_out_interval)
            held_out = f"held-out effect {three(result.held_out_effect)}"
            assert f"{held_out} (95 % interval {low} to {high}; n 16, independent 16)" in text
            low, high = map(three, result.spread)
            assert f" \u00b7 searched effect {three(result.effect)} [{low}, {high}] \u00b7 " in text
            assert " ms" not in text
            weights = [
                await status.locator(kind).evaluate("node => +getComputedStyle(node).fontWeight")
                for kind in (".tk-held-out", ".tk-effect")
            ]
            assert weights[0] > weights[1]
            basis = await page.locator(".tk-basis").inner_text()
            assert basis == view.setup["basis"]
            n_sets = len(view.exploration.measurements)
            saved = await page.locator(".tk-saved").inner_text()
            assert saved.startswith(
                f"A saved page without the model. {n_sets} measured sets can be"
            )
            assert saved.endswith(view.coverage)
            await page.locator("select").select_option("alone")
            dotted = await page.locator(".tk-unknown").evaluate_all(
                """cells => cells.map(cell => [
                     +cell.dataset.index,
                     getComputedStyle(cell).backgroundImage.startsWith("radial-gradient"),
                   ])"""
            )
            assert dotted == [[i, True] for i, value in enumerate(alone) if value is None]
            await page.locator(f'[data-index="{dotted[0][0]}"]').hover()
            assert "not measured alone" in await page.locator(".tk-hover").inner_text()

    chromium.run(scenario())


@pytest.mark.slow
def test_silence_is_said_and_an_answer_ends_it(chromium, heads):
    async def scenario():
        async with chromium.shown(lambda: heads.explore()) as view:
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            await view.page.clock.install()
            view.is_cut = True
            await view.cell("L2H2").click()
            await view.page.clock.fast_forward(5000)
            await view.page.clock.fast_forward(1500)
            alert = view.page.locator(".tk-problem[role=alert]")
            await view.page.get_by_text("No answer from Python.").wait_for()
            assert (await view.page.locator(".tk-status").inner_text()).startswith(
                "1 of 32 attention-patterns \u00b7 measuring"
            )
            view.is_cut = False
            await view.cell("L2H3").click()
            assert (
                f"effect {three(heads.evaluate([head(2, 2), head(2, 3)]))} " in await view.status()
            )
            assert await alert.text_content() == ""

    chromium.run(scenario())


@pytest.mark.slow
def test_an_error_is_shown_beside_the_set_that_it_is_of(chromium, demo_model, facts):
    is_broken = False

    def fragile(clean, intervened):
        effects = clean.x.exp() - intervened.x.exp()
        return torch.where(effects != 0, torch.nan, effects) if is_broken else effects

    tracer = tk.Tracer(demo_model, facts, "attention-patterns", fragile, layers=[1])

    async def scenario():
        nonlocal is_broken
        async with chromium.shown(lambda: tracer.explore([head(1, 0)])) as view:
            await view.page.wait_for_selector(".tk-legend .tk-bar")
            is_broken = True
            await view.cell("L1H3").click()
            alert = view.page.locator(".tk-problem[role=alert]")
            await view.page.get_by_text("is not finite on").wait_for()
            text = await alert.inner_text()
            assert text.startswith(
                "NonFiniteMetricError: The metric 'fragile' is not finite on 15 of 16"
            )
            assert "not measured" in await view.page.locator(".tk-status").inner_text()
            with pytest.raises(tk.errors.NonFiniteMetricError):
                _ = view.widget.effect
            await view.button("Undo").click()
            assert await alert.text_content() == ""
            assert f"effect {three(view.widget.effect)} " in await view.status()
            # A set that failed is tried again when it is clicked again.
            is_broken = False
            await view.cell("L1H3").click()
            assert "effect" in await view.status()

    chromium.run(scenario())


@pytest.mark.slow
def test_dark_surroundings_are_found(chromium, heads):
    async def scenario(color):
        async with chromium.shown(lambda: heads.explore()) as view:
            await view.page.evaluate("color => { document.body.style.background = color; }", color)
            await view.page.evaluate("() => document.body.setAttribute('data-jp-theme-light', '')")
            await asyncio.sleep(0.05)
            root = view.page.locator(".tk-explore")
            colors = await root.evaluate("root => getComputedStyle(root).color")
            return "tk-dark" in await root.get_attribute("class"), colors

    assert chromium.run(scenario("rgb(17, 17, 17)")) == (True, "rgb(236, 236, 236)")
    assert chromium.run(scenario("rgb(250, 250, 250)")) == (False, "rgb(26, 26, 26)")


@pytest.mark.slow
def test_beside_a_tall_grid_stands_what_is_known_of_it(chromium, tmp_path):
    model = tk.load_model(tiny.hf_model("llama", num_hidden_layers=18))
    tracer = tk.Tracer(model, tiny.pairs(4), "mlp-blocks", "probability-drop")
    path = tracer.explore().save(tmp_path / "explore.html")

    async def scenario():
        async with chromium.page() as page:
            await page.set_viewport_size({"width": 1000, "height": 700})
            await page.goto(path.as_uri())
            grid = await page.locator(".tk-grids").bounding_box()
            strip = await page.locator(".tk-strip").bounding_box()
            assert strip["x"] > grid["x"] + grid["width"]
            assert strip["y"] + strip["height"] < 700
            await page.set_viewport_size({"width": 400, "height": 700})
            strip = await page.locator(".tk-strip").bounding_box()
            assert strip["y"] >= grid["y"] + grid["height"] - 1

    chromium.run(scenario())
