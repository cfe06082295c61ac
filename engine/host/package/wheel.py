"""The Python wheel: the command `octavo`, and the site that it serves."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from engine import __version__
from engine.host import assemble, pip
from engine.host.errors import HostError
from engine.host.files import tree, write_whole
from engine.host.paths import CACHE, LOCK_BUILD, PACKED_SITE, ROOT
from engine.host.process import run

NEEDED = ("jinja2", "starlette", "uvicorn")
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "octavo"
version = {version}
description = "A large language model in a browser tab: serves the page, converts, measures."
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = {dependencies}

[project.scripts]
octavo = "engine.host.bootstrap:installed"

[project.optional-dependencies]
{extras}

[tool.hatch.build.targets.wheel]
packages = ["engine"]

[tool.hatch.build]
ignore-vcs = true
"""


def make(site: Path, out: Path) -> Path:
    """The wheel, with the built `site` but for its models, in the folder `out`."""
    folder = CACHE / "package" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "engine", folder / "engine", ignore=ignored)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    packed = folder / PACKED_SITE.relative_to(ROOT)
    for path in tree(site, lambda path: path.relative_to(site).parts[0] != assemble.MODELS):
        if path.as_posix() != assemble.PRECACHE:
            write_whole(packed / path, (site / path).read_bytes())
    (folder / "pyproject.toml").write_text(project(), encoding="utf-8")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    run("Building the Python wheel", build, cwd=folder)
    return out / f"octavo-{__version__}-py3-none-any.whl"


def project() -> str:
    """The wheel's pyproject.toml."""
    extras = [
        f"{extra} = {json.dumps(pinned(lock, packages))}"
        for lock, (extra, packages) in pip.EXTRAS.items()
    ]
    return PROJECT.format(
        version=json.dumps(__version__),
        dependencies=json.dumps(pinned(LOCK_BUILD, NEEDED)),
        extras="\n".join(extras),
    )


def pinned(lock: Path, packages: tuple[str, ...]) -> list[str]:
    """Requirements of `packages` in the versions of a lock file; HostError if it lacks one."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    found = []
    for package in packages:
        own = [line for line in lines if re.match(rf"{re.escape(package)}==", line)]
        if not own:
            raise HostError(f"{lock.name} lacks {package}.")
        found += [line.removesuffix("\\").strip() for line in own]
    return found
