"""Joins a widget to a page in a real browser: the comm of Jupyter, without Jupyter.

The widget is the real one, and so is everything that ipywidgets does to its messages. The page
holds the model that a front end gives to `render` (`get`, `set`, `save_changes`, `send`, `on`,
`off`), and hands messages on to Python through Playwright.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import comm
from comm.base_comm import BaseComm

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)

_MODEL = """
async (init) => {
  const put = (state, paths, buffers) => {
    paths.forEach((path, i) => {
      let at = state;
      path.slice(0, -1).forEach((step) => (at = at[step]));
      at[path[path.length - 1]] = view(buffers[i]);
    });
    return state;
  };
  const view = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };
  const handlers = {};
  const changed = {};
  const state = put(init.state, init.buffer_paths, init.buffers);
  const trigger = (name, ...args) => (handlers[name] ?? []).forEach((f) => f(...args));
  const model = {
    get: (name) => state[name],
    set(name, value) { state[name] = changed[name] = value; trigger(`change:${name}`); },
    save_changes() {
      const data = { method: "update", state: { ...changed }, buffer_paths: [] };
      Object.keys(changed).forEach((name) => delete changed[name]);
      window.toPython(JSON.stringify(data));
    },
    send: (content) => window.toPython(JSON.stringify({ method: "custom", content })),
    on(name, f) { (handlers[name] ??= []).push(f); },
    off(name, f) { handlers[name] = (handlers[name] ?? []).filter((g) => g !== f); },
  };
  window.fromPython = ({ data, buffers }) => {
    if (data.method === "custom") trigger("msg:custom", data.content, buffers.map(view));
    if (data.method !== "update") return;
    const update = put(data.state, data.buffer_paths ?? [], buffers);
    for (const [name, value] of Object.entries(update)) {
      state[name] = value;
      trigger(`change:${name}`);
    }
  };
  window.kernelDies = () => trigger("comm_live_update");
  const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
  const module = await import(url);
  const el = document.createElement("div");
  document.body.append(el);
  module.default.render({ model, el });
}
"""


class _Comm(BaseComm):
    """Keeps what is sent until a page takes it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.outbox: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        message = {
            "data": data or {},
            "buffers": [base64.b64encode(bytes(b)).decode() for b in buffers or []],
        }
        self.outbox.append(message)


class Bridge:
    """A page on which a widget is shown."""

    def __init__(self, page: Any, widget: Any) -> None:
        self.page, self.widget = page, widget
        self.problems: list[str] = []
        self.received: list[dict[str, Any]] = []
        """Messages of the page."""
        self.is_cut = False
        """Whether messages of the page get lost, as if the kernel were gone."""
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: line.type == "error" and self.problems.append(line.text))

    def to_python(self, text: str) -> None:
        data = json.loads(text)
        if self.is_cut:
            return
        self.received.append(data)
        self.widget.comm.handle_msg({"content": {"data": data}, "buffers": []})

    async def pump(self) -> None:
        """Hands on what the widget sends, in order."""
        outbox = self.widget.comm.outbox
        while True:
            while outbox and not self.is_cut:
                await self.page.evaluate("message => window.fromPython(message)", outbox.pop(0))
            await asyncio.sleep(0.002)

    def cell(self, label: str) -> Any:
        return self.page.locator(f'[role=gridcell][aria-label^="{label},"]').or_(
            self.page.locator(f'[role=gridcell][aria-label^="{label} "]')
        )

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    async def status(self) -> str:
        """The line of truth, once it is of a measured set."""
        await self.page.wait_for_selector(".tk-status[data-measured=true]")
        return await self.page.locator(".tk-status").inner_text()

    async def selected(self) -> list[str]:
        cells = self.page.locator("[role=gridcell][aria-selected=true]")
        labels = [await cell.get_attribute("aria-label") for cell in await cells.all()]
        return [label.replace(",", " ").split()[0] for label in labels]


class Chromium:
    """Debian's Chromium, with the event loop that it is driven in."""

    def __init__(self) -> None:
        from playwright.async_api import async_playwright

        self._loop = asyncio.new_event_loop()
        self._playwright = self.run(async_playwright().start())
        self._browser = self.run(
            self._playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self._browser.close())
        self.run(self._playwright.stop())
        self._loop.close()

    @asynccontextmanager
    async def page(self, **options: Any) -> AsyncIterator[Any]:
        """An empty page; options are those of a context, e.g. `color_scheme="dark"`."""
        size = {"width": 1000, "height": 900}
        context = await self._browser.new_context(viewport=size, **options)
        context.set_default_timeout(20_000)
        try:
            yield await context.new_page()
        finally:
            await context.close()

    @asynccontextmanager
    async def shown(self, make: Callable[[], Any], **options: Any) -> AsyncIterator[Bridge]:
        """A widget on a page; `make` makes it, once its messages are caught."""
        create, comm.create_comm = comm.create_comm, _Comm
        try:
            widget = make()
        finally:
            comm.create_comm = create
        (opening,) = widget.comm.outbox
        widget.comm.outbox.clear()
        async with self.page(**options) as page:
            bridge = Bridge(page, widget)
            await page.expose_function("toPython", bridge.to_python)
            await page.evaluate(_MODEL, {**opening["data"], "buffers": opening["buffers"]})
            pump = asyncio.ensure_future(bridge.pump())
            try:
                yield bridge
            finally:
                pump.cancel()
                if widget._task is not None:
                    widget._task.cancel()
        assert bridge.problems == []
