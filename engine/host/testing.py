"""`test`: everything that must hold. Prepares what the tests need, checks, then runs pytest."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from engine.host import assemble, check, chromium, pip
from engine.host.paths import LOCK_TEST, ROOT

# Of everything: a browser at work leaves half of two cores idle.
ALL = ("-n", "2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything after the command's name goes to pytest."""
    parser.usage = "build.py test [pytest's arguments]"


def main(arguments: argparse.Namespace) -> int:
    """The command; returns pytest's exit status, or that of the checks if they failed."""
    pip.install(LOCK_TEST, "Installing the test tools")
    browser = chromium.ensure()
    assemble.build()
    if status := check.main(arguments):
        return status
    command = [sys.executable, "-m", "pytest", *(arguments.rest or ALL)]
    return subprocess.call(command, cwd=ROOT, env={**os.environ, chromium.VARIABLE: browser})
