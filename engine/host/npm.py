"""npm packages, exactly as a package-lock.json has them, into node_modules/ beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engine.host import pip
from engine.host.errors import HostError
from engine.host.files import fingerprint
from engine.host.paths import LOCK_NODE, ROOT, VENV_BIN
from engine.host.process import run

SITE = "site"  # only what the page needs
ALL = "all"  # the type checker too
INPUTS = (Path("package.json"), Path("package-lock.json"))


def install(scope: str, folder: Path = ROOT) -> None:
    """Runs `npm ci` for SITE or ALL, unless that is done already for these very lock files."""
    stamp = folder / "node_modules" / ".octavo"
    wanted = fingerprint(folder, INPUTS)
    if stamp.is_file() and stamp.read_text() in (f"{ALL} {wanted}", f"{scope} {wanted}"):
        return
    npm = find("npm")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    if scope == SITE:
        command += ["--omit=dev", "--omit=optional"]
    run("Installing npm packages", command, _environment(npm), folder)
    stamp.write_text(f"{scope} {wanted}")


def pack(package: Path, out: Path) -> None:
    """Makes a tarball of the folder `package`, in the folder `out`."""
    npm = find("npm")
    command = [npm, "pack", "--ignore-scripts", "--pack-destination", str(out)]
    run("Packing the npm package", command, _environment(npm), package)


def node() -> str:
    """The node program: from the PATH, else from PyPI."""
    return find("node")


def find(name: str) -> str:
    """`name` from the PATH if node and npm are both there, else the one that PyPI brings."""
    if shutil.which("node") and shutil.which("npm"):
        return str(shutil.which(name))
    pip.install(LOCK_NODE, "Installing Node.js into .venv")
    inside = shutil.which(name, path=str(VENV_BIN))
    if not inside:
        raise HostError(f"{name} was not found. Install Node.js with npm and run again.")
    return inside


def _environment(npm: str) -> dict[str, str]:
    """npm starts `node` by name: the one beside it must come first."""
    path = os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])
    return {"PATH": path}
