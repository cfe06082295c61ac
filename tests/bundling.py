"""The pages of tests/examples that need a bundler, built by Vite with the packed npm package."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from engine.host import npm
from engine.host.process import run
from tests.conftest import ROOT, alone

EXAMPLES = ROOT / "tests/examples"
BUNDLED = ("react", "vue", "editor")


def bundle(package: Path, work: Path, out: Path, mode: str = "production") -> None:
    """Builds them into `out`, with the tarball `package` as what they import; `work` is an empty
    folder. React's checks, such as mounting everything twice, need the mode "development"."""
    with alone():
        npm.install(npm.ALL, EXAMPLES)
    os.symlink(EXAMPLES / "node_modules", work / "node_modules")
    site = work / "site"
    for name in BUNDLED:
        shutil.copytree(EXAMPLES / name, site / name)
    shutil.copyfile(EXAMPLES / "vite.config.mjs", site / "vite.config.mjs")
    with tarfile.open(package) as archive:
        archive.extractall(work, filter="data")
    (site / "node_modules").mkdir()
    (work / "package").rename(site / "node_modules/octavo")
    vite = EXAMPLES / "node_modules/vite/bin/vite.js"
    command = [npm.node(), vite, "build", "--logLevel", "warn", "--outDir", out, "--emptyOutDir"]
    run("Building the examples", command, {"NODE_ENV": mode}, site)
