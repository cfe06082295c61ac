"""A GGUF file of the user's as the only model of the catalogue: it is served where it lies."""

from __future__ import annotations

import json
import re
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from engine.host.errors import HostError
from engine.host.files import sha256

PLACE = "models/own"
_SPLIT = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE)
_NOT_KEPT = {"Cache-Control": "no-cache"}


def files_of(file: Path) -> list[Path]:
    """All files of a model, of which one is given. Raises HostError if one is missing."""
    split = _SPLIT.fullmatch(file.name)
    names = [file.name]
    if split:
        head, count = split[1], split[2]
        names = [f"{head}-{i + 1:05}-of-{count}.gguf" for i in range(int(count))]
    files = [file.with_name(name) for name in names]
    missing = next((file for file in files if not file.is_file()), None)
    if missing or file.suffix.lower() != ".gguf":
        raise HostError(f"There is no file {missing}." if missing else f"{file} is no .gguf file.")
    return files


def routes(site: Path, files: list[Path]) -> list[BaseRoute]:
    """The model, and the catalogue and the list of files of `site` as they are with it."""
    by_name = {file.name: file for file in files}
    models = json.dumps(catalogue(files)).encode()
    listed = json.loads((site / "precache.json").read_bytes())
    listed["version"] = sha256(listed["version"].encode() + models)[:16]

    async def send_file(request: Request) -> Response:
        file = by_name.get(request.path_params["name"])
        if not file:
            raise HTTPException(404)
        return FileResponse(file, media_type="application/octet-stream", headers=_NOT_KEPT)

    def json_route(path: str, body: bytes) -> Route:
        async def send(_: Request) -> Response:
            return Response(body, media_type="application/json", headers=_NOT_KEPT)

        return Route(path, send)

    return [
        json_route("/models.json", models),
        json_route("/precache.json", json.dumps(listed).encode()),
        Route(f"/{PLACE}/{{name}}", send_file),
    ]


def catalogue(files: list[Path]) -> dict[str, object]:
    """models.json with this model only."""
    first = files[0]
    entry = {
        "id": first.stem,
        "name": first.stem,
        "address": f"{PLACE}/{first.name}",
        "size": sum(file.stat().st_size for file in files),
    }
    return {"default": first.stem, "models": [entry]}
