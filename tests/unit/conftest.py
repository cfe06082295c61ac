"""Fixtures of several modules."""

from __future__ import annotations

import pytest

from engine import loader


@pytest.fixture
def no_device_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that count runs must not depend on the machine's speed."""
    monkeypatch.setattr(loader, "QUICK_SECONDS", 0.0)
