"""Pyodide's lock file, written anew for the packages that our page has."""

from __future__ import annotations

import json
from pathlib import Path

from pyodide_lock import PyodideLockSpec
from pyodide_lock.utils import add_wheels_to_spec

from engine.host import pins, wheels
from engine.host.errors import HostError


def lock(original: Path, files: list[Path]) -> bytes:
    """A pyodide-lock.json with exactly the wheels `files`, found beside it under their names.

    `original` is Pyodide's own lock file: it says for which runtime the lock is, and it is the
    authority on the NumPy wheel. Dependencies come from the wheels' metadata.
    """
    spec = PyodideLockSpec.from_json(original)
    if spec.info.version != pins.PYODIDE:
        raise HostError(f"{original} is of Pyodide {spec.info.version}, not {pins.PYODIDE}")
    numpy = spec.packages["numpy"]
    (numpy_wheel,) = (path for path in files if path.name == pins.NUMPY.file)
    wheels.check_numpy(pins.NUMPY, numpy.sha256, numpy_wheel)
    spec.packages = {"numpy": numpy}
    others = [path.resolve() for path in files if path != numpy_wheel]
    spec = add_wheels_to_spec(spec, others, base_path=Path(others[0].anchor))
    for package in spec.packages.values():
        package.file_name = Path(package.file_name).name
    return json.dumps(spec.model_dump(), indent=1, sort_keys=True).encode()
