"""Where things lie in the repository."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"  # downloads and results that can be made again
DIST = ROOT / "dist"
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
