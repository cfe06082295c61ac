"""Who may ask the server: by its token, and from which pages.

A browser lets any page that its user visits send requests to servers on the same machine. So a
server that needs no token refuses requests from pages other than its own, those on this machine
and those that it was told of (``Origin``), and requests that name it by another host than this
machine's (``Host``: a domain may be made to lead here). With a token the pages are the same: a
wildcard would let every page on the web try tokens, and use one that it came by.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request

from engine.errors import OctavoError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOOPBACK_HOST = r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
_LOOPBACK_ORIGIN = rf"https?://{_LOOPBACK_HOST}"


@dataclass(frozen=True)
class Access:
    """``token`` is empty if none is needed; ``origins`` are pages that may ask, beside the server's
    own and those on this machine."""

    token: str = ""
    origins: Sequence[str] = ()

    @classmethod
    def to(cls, host: str, token: str, origins: Sequence[str]) -> Access:
        """For a server that listens at ``host``: a token is needed where others reach it, and is
        made if there is none."""
        if host not in LOOPBACK:
            token = token or secrets.token_urlsafe(24)
        return cls(token, tuple(origin.rstrip("/") for origin in origins))

    def check(self, request: Request) -> None:
        """Raises OctavoError request.origin or request.token if a request is refused."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self.token and not re.fullmatch(_LOOPBACK_HOST, host):
            raise OctavoError("request.origin", "This server is asked by another name.")
        if origin and not self._may_ask(origin, f"{request.url.scheme}://{host}"):
            raise OctavoError("request.origin", hint="Start the server with --origin for it.")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else ""
        if self.token and not secrets.compare_digest(given.encode(), self.token.encode()):
            raise OctavoError("request.token", hint="Send the header Authorization: Bearer TOKEN.")

    def _may_ask(self, origin: str, own: str) -> bool:
        known = origin == own or origin in self.origins
        return known or bool(re.fullmatch(_LOOPBACK_ORIGIN, origin))

    def cors(self) -> Middleware:
        """What lets these pages read the answers."""
        return Middleware(
            CORSMiddleware,
            allow_origins=self.origins,
            allow_origin_regex=_LOOPBACK_ORIGIN,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # of OpenAI's client: it sends a dozen of its own
            allow_private_network=True,
        )
