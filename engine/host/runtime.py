"""Pyodide's lock file, written anew for the packages that our page has."""

from __future__ import annotations

import json
from pathlib import Path

from pyodide_lock import PyodideLockSpec
from pyodide_lock.utils import add_wheels_to_spec

from engine.host import pins, wheels
from engine.host.errors import HostError
from engine.host.files import file_sha256


def lock(original: Path, sources: list[Path], files: list[Path]) -> bytes:
    """A pyodide-lock.json with exactly the wheels `files`, found beside it under their names.

    They were compiled from `sources`, whose names they have. `original` is Pyodide's own lock file:
    it says for which runtime the lock is, and it is the authority on the NumPy wheel. What packages
    hold and depend on comes from the sources.
    """
    spec = PyodideLockSpec.from_json(original)
    if spec.info.version != pins.PYODIDE:
        raise HostError(f"{original} is of Pyodide {spec.info.version}, not {pins.PYODIDE}")
    numpy = spec.packages["numpy"]
    (numpy_wheel,) = (path for path in sources if path.name == pins.NUMPY.file)
    wheels.check_numpy(pins.NUMPY, numpy.sha256, numpy_wheel)
    spec.packages = {"numpy": numpy}
    others = [path.resolve() for path in sources if path != numpy_wheel]
    spec = add_wheels_to_spec(spec, others, base_path=Path(others[0].anchor))
    hashes = {path.name: file_sha256(path) for path in files}
    for package in spec.packages.values():
        package.file_name = Path(package.file_name).name
        package.sha256 = hashes[package.file_name]
    return json.dumps(spec.model_dump(), indent=1, sort_keys=True).encode()
