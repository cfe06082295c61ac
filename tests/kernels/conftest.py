"""A page with the software WebGPU adapter and the kernel harness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import GPU_FLAGS, ROOT, StaticServer
from tests.kernels.harness import Harness


@pytest.fixture(scope="session")
def harness(playwright: Any, chromium_path: str) -> Iterator[Harness]:
    server = StaticServer(ROOT)
    browser = playwright.chromium.launch(executable_path=chromium_path, args=GPU_FLAGS)
    page = browser.new_page()
    page.goto(f"{server.url}/tests/kernels/harness.html")
    page.wait_for_function("window.harness !== undefined")
    harness = Harness(page)
    assert harness.describe(), "Chromium offers no WebGPU adapter"
    yield harness
    browser.close()
    server.close()
