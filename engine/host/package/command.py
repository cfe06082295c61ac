"""`package`: makes the npm package and the Python wheel, each without the default model."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.host import assemble
from engine.host.package import tarball, wheel
from engine.host.paths import PACKAGES
from engine.host.progress import megabytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the packages go."""
    parser.add_argument("--out", type=Path, default=PACKAGES, metavar="DIR", help="the folder")


def main(arguments: argparse.Namespace) -> int:
    """The command."""
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    site = assemble.build()
    for made in (tarball.make(site, out), wheel.make(site, out)):
        print(f"{made} is ready ({megabytes(made.stat().st_size)})", flush=True)
    return 0
