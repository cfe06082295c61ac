"""`check`: style, Python types, JavaScript types."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from engine.host import npm, pip
from engine.host.package import declarations
from engine.host.paths import LOCK_TEST, NODE_MODULES, ROOT

# Each with its tsconfig.json: they see different globals.
JAVASCRIPT = ("web", "worker", "tests/bench/peers", "tests/types")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`check` takes none."""


def main(arguments: argparse.Namespace) -> int:
    """The command; 1 if any check failed."""
    pip.install(LOCK_TEST, "Installing the test tools")
    npm.install(npm.ALL)
    declarations.make()  # for tests/types
    failed = [name for name, command in _checks().items() if not _passes(name, command)]
    if failed:
        print("These checks failed: " + ", ".join(failed), flush=True)
    return 1 if failed else 0


def _checks() -> dict[str, list[str]]:
    tsc = [npm.node(), str(NODE_MODULES / "typescript/bin/tsc"), "--pretty", "false", "-p"]
    python = [sys.executable, "-m"]
    return {
        "ruff check": [*python, "ruff", "check", "."],
        "ruff format": [*python, "ruff", "format", "--check", "."],
        "mypy": [*python, "mypy", "--no-color-output", "--no-error-summary"],
        **{f"tsc {folder}": [*tsc, folder] for folder in JAVASCRIPT},
    }


def _passes(name: str, command: list[str]) -> bool:
    start = time.monotonic()
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    outcome = "failed" if result.returncode else "passed"
    print(f"{name}: {outcome} ({time.monotonic() - start:.1f} s)", flush=True)
    if result.returncode:
        print(result.stdout + result.stderr, flush=True)
    return result.returncode == 0
