"""Octavo: a large language model inside a browser tab."""

__version__ = "0.1.0"
