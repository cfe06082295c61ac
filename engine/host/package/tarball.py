"""The npm package: the client, its worker and all that this loads, but no model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from engine import __version__
from engine.host import npm, pins
from engine.host.package import declarations
from engine.host.paths import CACHE, NODE_MODULES, ROOT

CLIENT = "client.mjs"
BESIDE = re.compile(r'["\'`]\./([\w-]+\.mjs)')
FOLDERS = ("worker", "pyodide")
ONLY_OF_THE_PAGE = ("@highlightjs/cdn-assets", "dompurify", "idb", "marked", "uplot")
# A page of this package names its models by their addresses.
CATALOGUE = {"default": "", "models": []}
README = """# Octavo

A large language model inside a browser tab: an engine in Python (Pyodide), in a Web Worker, with
kernels in WGSL, and on the CPU where there is no GPU.

```js
import { Octavo } from "octavo";

const octavo = new Octavo();
await octavo.load({ model: "models/any.gguf" }); // an address, or a File
const messages = [{ role: "user", content: "Hello!" }];
const answer = await octavo.chat.completions.create({ messages });
console.log(answer.choices[0].message.content);
```

[API.md](API.md) describes all of it. The package has no model. `models/any.gguf` stands for a GGUF
file of a supported architecture that your site serves; another site must allow pages to read it
(CORS).

The client starts a worker, which loads the files that lie beside it: serve the package's folder as
it is. With a bundler, copy the folder to where your site's static files are, and give the client
the address of the worker: `new Octavo({ workerUrl: "/octavo/worker/worker.mjs" })`.
"""


def make(site: Path, out: Path) -> Path:
    """The tarball, made of the built `site` in the folder `out`."""
    folder = CACHE / "package" / "npm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in client_files(site):
        shutil.copyfile(site / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(site / name, folder / name)
    shutil.copytree(declarations.make(), folder, dirs_exist_ok=True)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    shutil.copyfile(ROOT / "web" / "API.md", folder / "API.md")
    packages = [name for name in pins.NPM if name not in ONLY_OF_THE_PAGE]
    (folder / "THIRD_PARTY.txt").write_text(third_party(packages), encoding="utf-8")
    (folder / "models.json").write_text(json.dumps(CATALOGUE), encoding="utf-8")
    (folder / "README.md").write_text(README, encoding="utf-8")
    (folder / "package.json").write_text(json.dumps(about(), indent=2), encoding="utf-8")
    npm.pack(folder, out)
    return out / f"octavo-{__version__}.tgz"


def client_files(site: Path) -> list[str]:
    """The client, and the files beside it that it or one of them names: they are imported."""
    found = [CLIENT]
    for name in found:
        text = (site / name).read_text(encoding="utf-8")
        found += [other for other in dict.fromkeys(BESIDE.findall(text)) if other not in found]
    return found


def about() -> dict[str, object]:
    """The package.json."""
    types = "./client.d.mts"
    return {
        "name": "octavo",
        "version": __version__,
        "description": "A large language model inside a browser tab.",
        "license": "Apache-2.0",
        "type": "module",
        "types": types,
        "exports": {
            ".": {"types": types, "default": "./client.mjs"},
            "./worker/worker.mjs": "./worker/worker.mjs",
            "./package.json": "./package.json",
        },
    }


def third_party(packages: list[str]) -> str:
    """Whose these npm packages are, with the texts of licences that they bring. The Python wheels
    carry their own."""
    parts = ["Parts of this package are the work of others.\n"]
    for package in packages:
        source = NODE_MODULES / package
        facts = json.loads((source / "package.json").read_text(encoding="utf-8"))
        parts.append(f"{package} {facts['version']}: {facts['license']}\n")
        parts += [path.read_text(encoding="utf-8") for path in sorted(source.glob("LICENSE*"))]
    return "\n".join(parts)
