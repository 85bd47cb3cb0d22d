"""A browser for the tests of the explorer."""

from __future__ import annotations

import os

import pytest

from tests.explore.bridge import CHROMIUM, Chromium


@pytest.fixture(scope="session")
def chromium():
    pytest.importorskip("anywidget")
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium")
        pytest.skip("needs Chromium")
    browser = Chromium()
    yield browser
    browser.close()
