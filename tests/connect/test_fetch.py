"""What is at a URL is fetched within bounds, and never from where the sender of the URL has no business."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bough.connect import fetch as fetching
from bough.connect.fetch import MAX_REDIRECTS, fetch, show_url
from bough.errors import BoughError, ConnectError, InvalidInput, LimitExceeded, PermissionDenied

pytestmark = pytest.mark.anyio

HERE = ("127.0.0.0/8",)


class Site:
    """A web server whose pages are `/file`, `/to/…` (a redirect there), `/loop`, `/large`, `/never`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.left = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, self.headers["Host"]))
                match self.path.split("/")[1:]:
                    case ["file", *_]:
                        self._answer(200, b"here it is")
                    case ["to", *rest]:
                        self._answer(302, location="/".join(rest))
                    case ["loop"]:
                        self._answer(302, location="/loop")
                    case ["large"]:
                        self._answer(200, bytes(2000))
                    case ["never"]:
                        site.left.wait(60)
                    case _:
                        self._answer(404)

            def _answer(self, status: int, body: bytes = b"", location: str | None = None) -> None:
                self.send_response(status)
                if location is not None:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.http.serve_forever, args=(0.02,))
    thread.start()
    yield site
    site.left.set()
    site.http.shutdown()
    thread.join()
    site.http.server_close()


async def test_a_file_comes_with_the_name_that_its_url_has(site: Site) -> None:
    fetched = await fetch(f"{site.url}/file/our%20report.pdf?key=secret", max_bytes=100, networks=HERE)
    assert (fetched.data, fetched.name) == (b"here it is", "our report.pdf")
    fetched = await fetch(f"{site.url}/to//file/b.txt", max_bytes=100, networks=HERE)
    assert (fetched.data, fetched.name) == (b"here it is", "b.txt")
    assert {host for _, host in site.asked} == {f"127.0.0.1:{site.port}"}


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("/nowhere", InvalidInput, "the server answers 404"),
        ("/loop", InvalidInput, f"more than {MAX_REDIRECTS} redirects"),
        ("/large", LimitExceeded, "more than 1000 bytes"),
        ("/to/ftp://127.0.0.1/x", InvalidInput, "which leads to ftp://127.0.0.1/x cannot be fetched"),
        ("/to/http://10.0.0.1/meta", PermissionDenied, "to http://10.0.0.1/meta cannot be fetched: it leads"),
        ("/to/http://[::ffff:10.0.0.1]/", PermissionDenied, "this machine or a private network"),
        ("/to/http://[64:ff9b::a00:1]/", PermissionDenied, "this machine or a private network"),
    ],
)  # fmt: skip
async def test_what_cannot_be_fetched_is_said(site: Site, path: str, error: type[BoughError], says: str) -> None:
    with pytest.raises(error) as refused:
        await fetch(site.url + path, max_bytes=1000, networks=HERE)
    assert says in refused.value.message
    assert refused.value.message.startswith(show_url(site.url + path))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("http://127.0.0.1:{port}/file", PermissionDenied, "this machine or a private network"),
        ("http://localhost:{port}/file", PermissionDenied, "this machine or a private network"),
        ("https://169.254.169.254/latest/meta-data", PermissionDenied, "this machine or a private network"),
        ("http://93.184.215.14/dot.png", PermissionDenied, "not encrypted"),
        ("https://no-such-host.invalid/dot.png", InvalidInput, "its host cannot be resolved"),
        ("https://user:pass@example.com/", InvalidInput, "not an address"),
        ("https://", InvalidInput, "not an address"),
        ("https://[::1", InvalidInput, "not an address"),
        ("https://example.com/" + "a" * 3000, InvalidInput, "not an address"),
    ],
)
async def test_this_machine_and_what_is_no_public_address_is_never_asked(
    site: Site, url: str, error: type[BoughError], says: str
) -> None:
    with pytest.raises(error) as refused:
        await fetch(url.format(port=site.port), max_bytes=1000)
    assert says in refused.value.message
    assert "pass" not in refused.value.message
    assert refused.value.hint
    assert site.asked == []


async def test_a_server_that_is_gone_or_never_answers_is_an_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SECONDS", 0.05)
    with pytest.raises(ConnectError, match=r"/never cannot be fetched: "):
        await fetch(f"{site.url}/never", max_bytes=1000, networks=HERE)
    monkeypatch.undo()
    with pytest.raises(ConnectError, match="cannot be fetched") as refused:
        await fetch("http://127.0.0.1:9/file", max_bytes=1000, networks=HERE)
    assert refused.value.hint


def test_a_url_is_shown_without_what_may_be_a_key() -> None:
    assert show_url("https://me:pw@example.com/a?key=1#x") == "https://example.com/a"
    assert len(show_url("https://example.com/" + "a" * 3000)) < 300


def test_what_is_shown_of_nonsense_is_the_nonsense() -> None:
    nonsense: Any = "https://[::1"
    assert show_url(nonsense) == nonsense
