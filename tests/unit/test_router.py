"""Clients of one engine, by chance: ids never mix, nobody ends another's, all waits end."""

from __future__ import annotations

import json
import subprocess

from engine.host import npm
from tests.conftest import ROOT

SEEDS, STEPS = 2000, 200


def test_clients_by_chance() -> None:
    command = [npm.node(), str(ROOT / "tests/unit/router.mjs"), str(SEEDS), str(STEPS)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True)
    *problems, counts = done.stdout.splitlines()
    assert problems == []
    for what in ("load", "generate", "stop", "unload", "reset", "status", "tokenize"):
        assert json.loads(counts)[f"{what} result"] > 1000, "all of them were tried"
    assert json.loads(counts)["request.cancelled"] > 1000
