"""The shape of the house: imports point one way, and what is kept in one place stays there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

ENGINE = ROOT / "engine"
# Higher rooms may import lower ones, never the other way; rooms on one line may not see each other.
LAYERS = [
    ["worker"],
    ["service"],
    ["engine", "remote", "encoders"],
    ["raw"],
    ["inspecting", "measuring", "unfinished", "request"],
    ["answer", "resident", "encoder"],
    ["recovery"],
    ["loader"],
    ["browser", "header"],
    ["selftest", "tuning", "encoder_check"],
    ["checks"],
    ["cases"],
    ["scheduler"],
    ["embedding"],
    ["room"],
    ["session", "turns", "sampling", "grammar", "economy", "detokenizer"],
    ["prompt", "kv"],
    ["chat", "reasoning"],
    ["sandbox"],
    ["stops", "templates"],
    ["models", "graph"],
    ["backends"],
    ["ops"],
    ["weights.dequantize", "weights.loading", "weights.split"],
    ["weights.quants"],
    ["plan"],
    ["shaders", "tokenizer", "weights.gguf"],
    ["fields"],
    ["config", "messages", "events", "timing"],
    ["errors", "files"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SHIPPED = [p for p in ENGINE.rglob("*.py") if "host" not in p.relative_to(ENGINE).parts]


def room(module: str) -> str:
    """The room of a module: ``engine.ops.linear`` -> ``ops``."""
    parts = module.split(".")[1:]
    if parts and parts[0] == "weights" and len(parts) > 1:
        return ".".join(parts[:2])
    return parts[0] if parts else ""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if node.module.startswith("engine")
                and (ROOT / Path(*node.module.split(".")) / f"{alias.name}.py").exists()
            }
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    own = room(module_of(path))
    for name in imports_of(path):
        if not name.startswith("engine.") or name == "engine.weights":
            continue
        other = room(name)
        assert other != "host", f"{path} is shipped and imports what runs on the build machine"
        if other != own and own:
            assert RANK[own] < RANK[other], f"{module_of(path)} must not import {name}"


def test_the_browser_is_touched_in_one_file() -> None:
    users = {
        module_of(p)
        for p in SHIPPED
        if any(
            n.split(".")[0] in ("js", "pyodide", "pyodide_js", "micropip") for n in imports_of(p)
        )
    }
    assert users == {"engine.backends.webgpu"}


def test_numpy_is_never_imported_at_the_top() -> None:
    """On the GPU path the tab has no NumPy."""
    for path in SHIPPED:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not any(n.startswith("numpy") for n in names), path


def test_files_stay_small() -> None:
    sources = [*SHIPPED, *ENGINE.rglob("*.c"), *(ROOT / "wgsl").rglob("*.wgsl")]
    sources += (ROOT / "worker").glob("*.mjs")
    for path in sources:
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= 450, f"{path} has {lines} lines: it does more than one thing"


def test_nothing_names_a_registry() -> None:
    for path in [*ROOT.glob("*.*"), *SHIPPED, *(ROOT / "web").rglob("*.*")]:
        if path.is_file() and path.suffix in (".py", ".md", ".json", ".toml", ".lock", ".mjs"):
            text = path.read_text(encoding="utf-8")
            assert "pypi" + ".org" not in text, path
            assert "npmjs" + ".org" not in text, path
