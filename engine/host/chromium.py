"""Finding a Chromium for the tests, or getting Debian's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engine.host.bootstrap import apt_install
from engine.host.errors import HostError

VARIABLE = "OCTAVO_CHROMIUM"  # names the program; the tests read it too
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/usr/bin/chromium",
    "/snap/bin/chromium",
    "/opt/google/chrome/chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Google/Chrome/Application/chrome.exe",
)


def ensure() -> str:
    """The path of a Chrome or Chromium, installed if that is possible; else raises HostError."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not shutil.which(chosen):
            raise HostError(f"{VARIABLE} names {chosen}, which is not a program.")
        return chosen
    found = find()
    if not found and apt_install("chromium"):
        found = find()
    if not found:
        raise HostError(
            "The tests need Chrome or Chromium. Install one (on Debian: apt-get install "
            f"chromium), or set {VARIABLE} to its path, and run again."
        )
    return found


def find() -> str | None:
    """The path of an installed Chrome or Chromium, or None."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    return next((place for place in PLACES if Path(place).is_file()), None)
