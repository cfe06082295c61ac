"""Modules of the page that need no browser, in Node."""

from __future__ import annotations

import subprocess

import pytest

from engine.host import npm
from tests.conftest import ROOT


@pytest.mark.parametrize(("script", "fewest"), [("answers", 20), ("search", 300)])
def test_all_checks_pass(script: str, fewest: int) -> None:
    command = [npm.node(), str(ROOT / f"tests/unit/{script}.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True)
    *problems, tried = done.stdout.splitlines()
    assert problems == []
    assert int(tried) > fewest
