"""From a bare python3 into the project's own virtual environment. Standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from engine.host import pip
from engine.host.errors import HostError
from engine.host.paths import INSTALLED, LOCK_BUILD, ROOT, VENV, VENV_PYTHON
from engine.host.process import run


def main(arguments: list[str]) -> int:
    """The whole command line: enters the environment if need be, then runs the command."""
    try:
        if not INSTALLED and Path(sys.prefix).resolve() != VENV.resolve():
            return _continue_inside(arguments)
        if not INSTALLED:
            pip.install(LOCK_BUILD, "Installing the build tools")
        from engine.host import cli  # only now are its imports there

        return cli.main(arguments)
    except HostError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


def installed() -> int:
    """The command `octavo` of the installed package."""
    return main(sys.argv[1:])


def _continue_inside(arguments: list[str]) -> int:
    if not _usable():
        _create()
    command = [str(VENV_PYTHON), str(ROOT / "build.py"), *arguments]
    if os.name != "nt":
        sys.stdout.flush()
        os.execv(command[0], command)
    return subprocess.call(command)


def _usable() -> bool:
    """Whether the environment is whole: its Python starts and has pip."""
    if not VENV_PYTHON.exists():
        return False
    probe = subprocess.run([VENV_PYTHON, "-c", "import pip"], capture_output=True, cwd=VENV)
    return probe.returncode == 0


def _create() -> None:
    if not _can_create():
        _install_venv_package()
    shutil.rmtree(VENV, ignore_errors=True)
    run("Creating .venv", [sys.executable, "-m", "venv", VENV])


def _can_create() -> bool:
    return bool(find_spec("venv") and find_spec("ensurepip"))


def _install_venv_package() -> None:
    """Debian's bare python3 comes without ensurepip; its own package brings it."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if not apt_install(package):
        raise HostError(
            "This Python cannot create virtual environments. Install the package that brings "
            f"its venv module (on Debian and Ubuntu: apt-get install {package}) and run again."
        )


def apt_install(package: str) -> bool:
    """Installs a Debian package where that is possible: as root, with apt-get.

    Returns False where it is not possible; raises HostError if apt-get fails.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("Reading Debian's package list", ["apt-get", "update"], quiet)
    run(
        f"Installing Debian's {package}",
        ["apt-get", "install", "-y", "--no-install-recommends", package],
        quiet,
    )
    return True
