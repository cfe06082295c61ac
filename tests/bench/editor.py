"""How soon an editor's proposals come and go: tests/examples/editor/bench.html as a static folder.

    python -m tests.bench.editor DIR [--model FILE.gguf | --no-model]

The default model is put beside it, or FILE, or none: then name one that the same server has, by
`?model=`. Serve DIR by any static server, and open /editor/bench.html; its address parameters, and
what it prints, are described in bench.mjs there.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from engine.host import assemble, pins
from engine.host.package import tarball
from tests.bundling import bundle


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Writes the editor's bench into a folder.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--no-model", action="store_true")
    arguments = parser.parse_args()
    out: Path = arguments.folder.resolve()
    site = assemble.build()
    with tempfile.TemporaryDirectory() as work:
        bundle(tarball.make(site, Path(work)), Path(work), out)
    if not arguments.no_model:
        model = arguments.model or assemble.model_file(pins.MODELS[0])
        shutil.copyfile(model, out / "model.gguf")
    print(f"Written to {out}: serve it, and open /editor/bench.html")


if __name__ == "__main__":
    main()
