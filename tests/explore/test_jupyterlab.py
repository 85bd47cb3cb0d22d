"""The explorer end to end in JupyterLab: its own server, its own kernel, a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak
pytest.importorskip("jupyterlab")

_TOKEN = "explorer"
_FIRST = """
import os
import tracekit as tk

model = tk.load_model("demo")
pairs = tk.load_dataset("demo-facts", model)[:16]
tracer = tk.Tracer(model, pairs, "attention-patterns", "probability-drop", max_batch_size=4)
view = tracer.explore()
view
"""
_SECOND = "print('SEEN', view.labels, view.effect == tracer.evaluate(view.components), os.getpid())"


@pytest.fixture(params=["JupyterLab Light", "JupyterLab Dark"])
def lab(request, tmp_path) -> Iterator[str]:
    """Address of a notebook in a running server."""
    import nbformat

    cells = [nbformat.v4.new_code_cell(code.strip()) for code in (_FIRST, _SECOND)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "explore.ipynb")
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    theme = {"theme": request.param}
    (settings / "themes.jupyterlab-settings").write_text(json.dumps(theme))
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "IPYTHONDIR": "ipython",
    }
    environment = {**os.environ, **{name: str(tmp_path / at) for name, at in own.items()}}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
            *(f"--IdentityProvider.token={_TOKEN}", f"--ServerApp.root_dir={tmp_path}"),
        ],
        env=environment,
        stdout=(tmp_path / "server.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        for _ in range(300):
            time.sleep(0.2)
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={_TOKEN}", timeout=2)
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
        yield f"http://127.0.0.1:{port}/lab/tree/explore.ipynb?token={_TOKEN}"
    finally:
        # Kernels are children of the server, in its session.
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def test_the_explorer_in_jupyterlab(lab, chromium, tmp_path, request):
    """Clicks, keys that JupyterLab may take for its own, the next cell, a kernel that dies."""
    is_dark = "Dark" in request.node.name

    async def printed(page):
        """Labels, agreement and process, as the second cell printed them."""
        output = page.locator(".jp-OutputArea-output pre", has_text="SEEN")
        await output.wait_for()
        match = re.search(r"SEEN \[(.*)\] (\w+) (\d+)", await output.inner_text())
        assert match is not None
        return match.groups()

    async def scenario():
        async with chromium.page() as page:
            page.set_default_timeout(60_000)
            await page.goto(lab)
            # A key pressed before the kernel is there is lost now and then.
            await page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
            await page.locator(".jp-Notebook .jp-CodeCell").first.click()
            await page.keyboard.press("Shift+Enter")
            explorer = page.locator(".tk-explore")
            await explorer.wait_for()
            await page.wait_for_selector(".tk-legend .tk-bar")
            assert ("tk-dark" in await explorer.get_attribute("class")) == is_dark
            await page.locator('[data-index="12"]').click()
            await page.locator('[data-index="15"]').click()
            await page.wait_for_selector('.tk-status[data-key="12,15"][data-measured=true]')
            # Arrows and space belong to the grid, and j and k to nobody.
            await page.locator('[data-index="15"]').focus()
            for key in ("ArrowDown", "Space", "j"):
                await page.keyboard.press(key)
            await page.wait_for_selector('.tk-status[data-key="12,15,23"][data-measured=true]')
            # Neither are letters in the box commands, where dd deletes a cell.
            prompt, other = await page.locator(".tk-ask input").all()
            await prompt.click()
            await page.keyboard.type("dd")
            assert await prompt.input_value() == "dd"
            for box, name in ((prompt, "velm"), (other, "dorra")):
                await box.fill(f"the tower of {name} is home to many")
            await page.keyboard.press("Enter")
            await page.get_by_text("with the set replaced: ").wait_for()
            await page.screenshot(path=tmp_path / "lab.png")
            await page.locator(".jp-CodeCell .cm-content").nth(1).click()
            await page.keyboard.press("Control+Enter")
            labels, agrees, pid = await printed(page)
            assert (labels, agrees) == ("'L1H4', 'L1H7', 'L2H7'", "True")
            status = await page.locator(".tk-status").inner_text()
            os.kill(int(pid), signal.SIGKILL)
            await page.get_by_text("The kernel has stopped or was restarted.").wait_for()
            await page.locator(".jp-Dialog").get_by_role("button", name="Ok").click()
            assert await page.locator(".tk-status").inner_text() == status
            assert not await prompt.is_visible()
            await page.get_by_role("button", name="Undo", exact=True).click()
            await page.wait_for_selector('.tk-status[data-key="12,15"][data-measured=true]')
            await page.screenshot(path=tmp_path / "dead.png")

    chromium.run(asyncio.wait_for(scenario(), 300))
