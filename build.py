#!/usr/bin/env python3
"""Octavo's one command line: `python3 build.py --help`. The work is done in engine/host/."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (said before an import fails on an older one)
    sys.exit("Octavo needs Python 3.11 or newer; this is Python " + sys.version.split()[0])

from engine.host.bootstrap import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
