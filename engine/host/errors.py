"""The one exception of the command line."""

from __future__ import annotations


class HostError(Exception):
    """Something a person has to put right; the message says what, and is all that is shown."""
