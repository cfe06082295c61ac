"""TypeScript declarations of the client, made out of its JSDoc comments by the compiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from engine.host import npm
from engine.host.files import tree
from engine.host.paths import CACHE, NODE_MODULES, ROOT
from engine.host.process import run

FOLDER = CACHE / "types"
SOURCES = ("web/client.mjs", "worker/protocol.mjs")  # and what they import


def make() -> Path:
    """Writes client.d.mts and what it refers to into FOLDER, laid out as the site is."""
    npm.install(npm.ALL)
    made = CACHE / "declarations"
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    made.mkdir(parents=True)
    options = {
        "noEmit": False,
        "declaration": True,
        "emitDeclarationOnly": True,
        "rootDir": str(ROOT),
        "rootDirs": [str(ROOT / "web"), str(ROOT)],  # the site has worker/ within
        "outDir": str(made),
    }
    project = {
        "extends": str(ROOT / "web" / "tsconfig.json"),
        "compilerOptions": options,
        "include": [],
        "files": [str(ROOT / source) for source in SOURCES],
    }
    (made / "tsconfig.json").write_text(json.dumps(project))
    compiler = NODE_MODULES / "typescript/bin/tsc"
    run("Making the type declarations", [npm.node(), compiler, "--pretty", "false", "-p", made])
    for path in tree(made, lambda path: path.name.endswith(".d.mts")):
        text = (made / path).read_text(encoding="utf-8")
        place = FOLDER / (path.relative_to("web") if path.parts[0] == "web" else path)
        place.parent.mkdir(parents=True, exist_ok=True)
        # in the site the client lies one folder higher
        place.write_text(text.replace('import("../worker/', 'import("./worker/'), encoding="utf-8")
    return FOLDER
