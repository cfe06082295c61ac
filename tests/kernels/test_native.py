"""The CPU device's SIMD kernels, as the site ships them, in Pyodide under Node."""

from __future__ import annotations

import json
import subprocess
import weakref
from typing import Any

import numpy as np
import pytest

from engine.backends.native import Bound, open_native
from engine.host import npm
from tests.conftest import ROOT
from tests.kernels.native_cases import Case, cases


@pytest.fixture(scope="module")
def result() -> Any:
    command = [npm.node(), ROOT / "tests/kernels/native.mjs", "tests.kernels.native_cases"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_kernels_equal_their_references(result: Any, case: Case) -> None:
    assert result["errors"][case.name] <= case.tolerance


def test_the_tiny_model_gives_its_golden_ids(result: Any) -> None:
    assert result["golden"] == [True, True, True], "the last one's pools grow meanwhile"


def test_cpython_computes_with_numpy() -> None:
    assert open_native() is None


def test_arguments_go_by_address_and_stay_alive() -> None:
    """A kernel has no reference to its arrays: were they freed, it would write into others."""
    got: list[tuple[Any, ...]] = []
    array = np.arange(3, dtype=np.float32)
    address, alive = array.ctypes.data, weakref.ref(array)
    bound = Bound(lambda *arguments: got.append(arguments), array, None, 7)
    del array
    bound()
    assert [(a.value, none.value, n) for a, none, n in got] == [(address, None, 7)]
    assert alive() is not None
    with pytest.raises(AssertionError):
        Bound(lambda *_: None, np.zeros((4, 4))[:, :2])
