"""The site with Octavo's peers beside it, for `bench --peers`. Never part of dist/."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from engine.host import assemble, npm, pip
from engine.host.errors import HostError
from engine.host.paths import CACHE, DIST, LOCK_TEST, ROOT
from engine.host.process import run
from engine.tokenizer.spec import tokenizer_json
from engine.weights.gguf import read_header

SOURCE = ROOT / "tests" / "bench" / "peers"
SITE = CACHE / "peers"
PLACE = "peers"  # folder of the site that holds the adapters and, in lib/, what they load
EMBEDDINGS_SITE = CACHE / "peers-embeddings"
MAKE_ONNX = "tests.bench.peers.make_onnx"
MAKE_EMBEDDINGS = "tests.bench.peers.embeddings_site"

# Place in peers/lib/ -> place in node_modules/ beside the lock file.
_ORT_OF_TRANSFORMERS = "@huggingface/transformers/node_modules/onnxruntime-web/dist"
LIBRARIES = {
    "wllama/index.js": "@wllama/wllama/esm/index.js",
    "wllama/wllama.wasm": "@wllama/wllama/esm/wasm/wllama.wasm",
    "tokenizers/tokenizers.min.mjs": "@huggingface/tokenizers/dist/tokenizers.min.mjs",
    "transformers/transformers.min.js": "@huggingface/transformers/dist/transformers.min.js",
    **{
        f"transformers/ort-wasm-simd-threaded.asyncify.{kind}": (
            f"{_ORT_OF_TRANSFORMERS}/ort-wasm-simd-threaded.asyncify.{kind}"
        )
        for kind in ("mjs", "wasm")
    },
    "onnxruntime/ort.jspi.bundle.min.mjs": "onnxruntime-web/dist/ort.jspi.bundle.min.mjs",
    **{
        f"onnxruntime/ort-wasm-simd-threaded.jspi.{kind}": (
            f"onnxruntime-web/dist/ort-wasm-simd-threaded.jspi.{kind}"
        )
        for kind in ("mjs", "wasm")
    },
}

# The peers start workers, and load scripts, from blobs; the bench page of the site allows none.
STRICT = ("script-src 'self' ", "worker-src 'self';", "connect-src 'self';")
# WebAssembly threads need a page that shares nothing with other origins.
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}


def build() -> Path:
    """The folder that `bench --peers` serves, up to date."""
    shutil.rmtree(SITE, ignore_errors=True)
    write(SITE)
    return SITE


def write(folder: Path) -> None:
    """Writes the whole of it to `folder`: the site, the peers, and the weights as they want them.

    Any static server can serve it; only wllama's threads need the headers ISOLATED.
    """
    assemble.build()
    npm.install(npm.SITE, SOURCE)
    pip.install(LOCK_TEST, "Installing the test tools")  # NumPy is among them
    shutil.copytree(DIST, folder, dirs_exist_ok=True)
    page = folder / "bench.html"
    page.write_text(relaxed(page.read_text()))
    copy_adapters(folder)
    for manifest in (folder / assemble.MODELS).glob("*/manifest.json"):
        _make_tokenizer(manifest)
        _make_onnx(manifest)


def build_embeddings() -> Path:
    """The folder that `bench --embeddings` serves: an encoder as both want it."""
    shutil.rmtree(EMBEDDINGS_SITE, ignore_errors=True)
    command = [sys.executable, "-m", MAKE_EMBEDDINGS, str(EMBEDDINGS_SITE)]
    run("Making the bench of embeddings", command)
    return EMBEDDINGS_SITE


def copy_adapters(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Puts the adapters into a site, and the libraries that are wanted, by their places."""
    for name in filter(wanted, LIBRARIES):
        _copy(SOURCE / "node_modules" / LIBRARIES[name], folder / PLACE / "lib" / name)
    for adapter in SOURCE.glob("*.mjs"):
        _copy(adapter, folder / PLACE / adapter.name)


def _make_tokenizer(manifest: Path) -> None:
    """The tokenizer.json that Octavo makes of the model's vocabulary, beside its shards."""
    facts = json.loads(manifest.read_text())
    head = (manifest.parent / facts["shards"][0]["name"]).read_bytes()
    metadata = read_header(head, facts["size"]).metadata
    (manifest.parent / "tokenizer.json").write_text(tokenizer_json(metadata), encoding="utf-8")


def _make_onnx(manifest: Path) -> None:
    command = [sys.executable, "-m", MAKE_ONNX, str(manifest), str(manifest.parent)]
    run(f"Making the ONNX form of {manifest.parent.name}", command)


def relaxed(page: str) -> str:
    """The bench page with a content security policy under which the peers run."""
    for directive in STRICT:
        if directive not in page:
            raise HostError(f"web/bench.html has no {directive!r} in its policy.")
        page = page.replace(directive, directive.replace("'self'", "'self' blob:"))
    return page


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
