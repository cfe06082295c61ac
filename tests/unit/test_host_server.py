"""The server of `build.py serve` against requests that want what is not the site's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from engine.host import serve
from engine.host.errors import HostError
from engine.host.paths import ROOT

SECRET = b"nobody's business"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A site with secrets around it, and links to them."""
    folder = tmp_path_factory.mktemp("served")
    site = folder / "site"
    (site / "deep").mkdir(parents=True)
    (folder / "site-too").mkdir()
    for place in (folder, folder / "site-too", site / ".hidden"):
        place.mkdir(exist_ok=True)
        (place / "secret.txt").write_bytes(SECRET)
    (site / "index.html").write_text("the page")
    (site / "_headers").write_text((ROOT / "web/_headers").read_text(encoding="utf-8"))
    (site / "link.txt").symlink_to(folder / "secret.txt")
    (site / "up").symlink_to(folder)
    (site / ".env").write_bytes(SECRET)
    listener = serve.listen("127.0.0.1", 0)
    config = uvicorn.Config(serve.application(site), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(timeout=10)


def ask(port: int, target: bytes, method: bytes = b"GET") -> tuple[int, bytes]:
    """The status and all that comes for a request line as it is; 0 if nothing is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(
            method + b" " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        got = b""
        while part := connection.recv(1 << 16):
            got += part
    return int(got.split(b" ")[1]) if got else 0, got


TRAVERSALS = [
    b"/../secret.txt",
    b"/../../../../../../../../etc/passwd",
    b"/deep/../../secret.txt",
    b"/./../secret.txt",
    b"/%2e%2e/secret.txt",
    b"/%2e%2e%2fsecret.txt",
    b"/..%2fsecret.txt",
    b"/deep/%2e%2e/%2e%2e/secret.txt",
    b"/%252e%252e%252fsecret.txt",
    b"/..%5csecret.txt",
    b"/..\\secret.txt",
    b"/\\..\\secret.txt",
    b"/%c0%ae%c0%ae/secret.txt",
    b"/%uff0e%uff0e/secret.txt",
    b"/..;/secret.txt",
    b"/....//secret.txt",
    b"/../site-too/secret.txt",
    b"/%2e%2e/site-too/secret.txt",
    b"//etc/passwd",
    b"/%2fetc/passwd",
    b"/%2fetc%2fpasswd",
    b"/etc/passwd",
    b"//../secret.txt",
    b"../secret.txt",
    b"secret.txt",
    b"file:///etc/passwd",
    b"http://x/../secret.txt",
    b"/c:/windows/win.ini",
    b"/%5c%5cx%5cshare",
    b"/link.txt",
    b"/up/secret.txt",
    b"/up/site-too/secret.txt",
    b"/deep/../up/secret.txt",
    b"/.env",
    b"/.hidden/secret.txt",
    b"/deep/../.env",
    b"/%2eenv",
    b"/_headers",
    b"/./_headers",
    b"/deep/../_headers",
    b"/%5fheaders",
    b"/index.html%00",
    b"/%00",
    b"/index.html%00/../../secret.txt",
    b"/..%00/secret.txt",
    b"/index.html/../../secret.txt",
    b"/" + b"a" * 5000,
    b"/" + b"../" * 500 + b"etc/passwd",
    b"/%ff%fe",
    b"/deep%0d%0aX-Evil:%201",
]


@pytest.mark.parametrize("target", TRAVERSALS, ids=lambda t: t[:40].decode("latin-1"))
def test_nothing_outside_the_site_is_served(port: int, target: bytes) -> None:
    status, answer = ask(port, target)
    assert status in (0, 400, 401, 404), answer[:300]
    assert SECRET not in answer
    assert b"root:" not in answer
    assert b"X-Evil" not in answer
    assert b"Content-Security-Policy:" not in answer.partition(b"\r\n\r\n")[2]
    assert os.fsencode(str(ROOT)) not in answer, "no paths of this machine"
    assert ask(port, b"/")[0] == 200, "the server lives"


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"PATCH", b"TRACE", b"OPTIONS"])
def test_nothing_can_be_done_but_reading(port: int, method: bytes) -> None:
    assert ask(port, b"/index.html", method)[0] == 405


@pytest.mark.parametrize("target", [b"/", b"/index.html", b"/none", b"/deep"])
def test_every_answer_has_the_sites_headers(port: int, target: bytes) -> None:
    _, answer = ask(port, target)
    lines = answer.split(b"\r\n\r\n")[0].split(b"\r\n")
    headers = {k.lower(): v for k, v in (line.split(b": ", 1) for line in lines[1:])}
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert headers[b"cross-origin-opener-policy"] == b"same-origin"
    policy = headers[b"content-security-policy"].decode()
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert "unsafe-inline" not in policy and "'unsafe-eval'" not in policy


def test_a_file_of_headers_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "_headers").write_text("/*\n  X-One: 1\n/worker/*\n  X-Two: 2\n")
    with pytest.raises(HostError, match="/worker"):
        serve.application(tmp_path)
    (tmp_path / "_headers").write_text("# said\n\n/*\n  X-One: 1: 2\n")
    assert serve.site_headers(tmp_path) == {"X-One": "1: 2"}
    assert serve.site_headers(tmp_path / "none") == {}
