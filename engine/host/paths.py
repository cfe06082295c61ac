"""Where things lie: in the repository or, for the installed package, at its user's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKED_SITE = Path(__file__).resolve().parent / "site"  # dist/ without models, in the package
INSTALLED = PACKED_SITE.is_dir()


def _user_cache() -> Path:
    """Where this system keeps what programs can make again."""
    places = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
    variable, usual = places.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    return Path(os.environ.get(variable) or Path.home() / usual) / "octavo"


CACHE = _user_cache() if INSTALLED else ROOT / ".cache"  # what can be made again
DIST = CACHE / "site" if INSTALLED else ROOT / "dist"
PACKAGES = ROOT / "packages"
NODE_MODULES = ROOT / "node_modules"

VENV = ROOT / ".venv"
VENV_BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
VENV_PYTHON = VENV_BIN / ("python.exe" if os.name == "nt" else "python")

LOCK_BUILD = ROOT / "requirements.lock"
LOCK_TEST = ROOT / "requirements-test.lock"
LOCK_API = ROOT / "requirements-api.lock"
LOCK_NODE = ROOT / "requirements-node.lock"
LOCK_COMPILER = ROOT / "requirements-compiler.lock"
LOCK_CONVERT = ROOT / "requirements-convert.lock"
