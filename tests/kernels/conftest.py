"""A page with the software WebGPU adapter, or another one, and the kernel harness."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import GPU_FLAGS, ROOT, StaticServer
from tests.kernels.cases import DEVICES
from tests.kernels.harness import Harness


@pytest.fixture(scope="session")
def harness(playwright: Any, chromium_path: str) -> Iterator[Harness]:
    server = StaticServer(ROOT)
    browser = playwright.chromium.launch(executable_path=chromium_path, args=GPU_FLAGS)
    page = browser.new_page()
    page.goto(f"{server.url}/tests/kernels/harness.html")
    page.wait_for_function("window.harness !== undefined")
    harness = Harness(page)
    adapter = harness.describe()
    assert adapter, "Chromium offers no WebGPU adapter"
    lanes = json.loads(adapter)["subgroup"]
    DEVICES["subgroup"] = replace(DEVICES["subgroup"], subgroup=lanes)
    yield harness
    browser.close()
    server.close()
