"""A GGUF file of the user's as the only model of the catalogue: it is served where it lies."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from engine.host.files import name_of, sha256

PLACE = "models/own"
_NOT_KEPT = {"Cache-Control": "no-cache"}


def routes(site: Path, files: list[Path]) -> list[BaseRoute]:
    """The model, and the catalogue and the list of files of `site` as they are with it."""
    by_name = {file.name: file for file in files}
    encoder = json.loads((site / "models.json").read_bytes()).get("encoder")
    beside = {"encoder": encoder} if encoder else {}
    models = json.dumps({**catalogue(files), **beside}).encode()
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
    name = name_of(files[0])
    entry = {
        "id": name,
        "name": name,
        "address": f"{PLACE}/{files[0].name}",
        "size": sum(file.stat().st_size for file in files),
    }
    return {"default": name, "models": [entry]}
