"""The CPU device's SIMD kernels as they are compiled for this machine."""

from __future__ import annotations

import pytest

from engine.backends.native import Native
from engine.host import native
from engine.host.paths import ROOT
from tests.kernels.native_cases import Case, cases


@pytest.fixture(scope="module")
def kernels() -> Native:
    return Native(ROOT / native.build(native.HERE), "SIMD")


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_kernels_equal_their_references(kernels: Native, case: Case) -> None:
    assert case.error(kernels) <= case.tolerance
