"""What the client makes of options and of answers, in Node."""

from __future__ import annotations

import subprocess

from engine.host import npm
from tests.conftest import ROOT


def test_answers() -> None:
    command = [npm.node(), str(ROOT / "tests/unit/answers.mjs")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True)
    *problems, tried = done.stdout.splitlines()
    assert problems == []
    assert int(tried) > 20
