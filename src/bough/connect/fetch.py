"""Fetches a URL: only public addresses over HTTPS, limited in size and time, and every redirect is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from bough.connect.address import CheckedAddress, check_address
from bough.errors import BoughError, ConnectError, InvalidInput, LimitExceeded

if TYPE_CHECKING:
    import httpx2

SECONDS = 30.0
"""Time limit of the whole fetch, including name lookups and redirects."""

MAX_REDIRECTS = 5

_MAX_SHOWN = 200
_HINT = "check the URL, or give the file itself"


@dataclass(frozen=True, kw_only=True)
class FetchedContent:
    """The content of a URL.

    Attributes:
        name: The last part of the path after redirects; None if the path has none.
    """

    data: bytes
    name: str | None


async def fetch(url: str, *, max_bytes: int, networks: Sequence[str] = ()) -> FetchedContent:
    """Return the content of a URL, at most `max_bytes`, within `SECONDS`.

    Ignores proxy variables and sends no cookies. Connects to the IP address that was checked.

    Args:
        networks: Private networks that are allowed, also over plain HTTP.

    Raises:
        InvalidInput: The URL is not an HTTP URL, its host name cannot be resolved, or the server returns an error.
        PermissionDenied: The URL or a redirect leads to this machine or a private network, or is not encrypted.
        LimitExceeded: The content is larger than `max_bytes`.
        ConnectError: The server does not answer, or not in time.
    """
    import httpx2

    try:
        # For the whole fetch: the client's timeout applies to each operation, so a slow server could send for ever.
        async with (
            asyncio.timeout(SECONDS),
            httpx2.AsyncClient(timeout=SECONDS, follow_redirects=False, trust_env=False) as http,
        ):
            return await _follow(http, url, max_bytes, networks)
    except (httpx2.HTTPError, TimeoutError) as error:
        reason = str(error) or f"no answer within {SECONDS:g} s"
        raise ConnectError(f"{show_url(url)} cannot be fetched: {reason}", hint=_HINT) from error


def show_url(url: str) -> str:
    """Return a URL for messages: shortened, without password and query, which may contain secrets."""
    try:
        parts = urlsplit(url)
        display_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        display_url = url
    return display_url if len(display_url) <= _MAX_SHOWN else f"{display_url[:_MAX_SHOWN]}…"


async def _follow(http: httpx2.AsyncClient, url: str, max_bytes: int, networks: Sequence[str]) -> FetchedContent:
    """Follow redirects and return the content of the last URL."""
    location = url
    for _ in range(MAX_REDIRECTS + 1):
        # Every redirect is checked like the first URL: a public server may redirect to a private address.
        address = await _check(url, location, networks)
        headers = {"Host": address.host, "Accept-Encoding": "identity"}
        # The connection goes to the checked IP address, but the certificate is issued for the host name.
        extensions = {"sni_hostname": address.host.partition(":")[0]}
        async with http.stream("GET", address.url, headers=headers, extensions=extensions) as answer:
            if answer.has_redirect_location:
                location = urljoin(location, answer.headers["location"])
                continue
            if not answer.is_success:
                raise InvalidInput(
                    f"{show_url(url)} cannot be fetched: the server answers {answer.status_code}",
                    hint=_HINT,
                )
            return FetchedContent(data=await _read(answer, url, max_bytes), name=_parse_file_name(location))
    raise InvalidInput(
        f"{show_url(url)} cannot be fetched: more than {MAX_REDIRECTS} redirects", hint="give the URL that they lead to"
    )


async def _check(url: str, location: str, networks: Sequence[str]) -> CheckedAddress:
    try:
        return await check_address(location, networks, setting="fetch_networks")
    except BoughError as error:
        redirect = "" if location == url else f", which leads to {show_url(location)}"
        error.message = f"{show_url(url)}{redirect} cannot be fetched: {error.message.removeprefix('url: ')}"
        raise


async def _read(answer: httpx2.Response, url: str, max_bytes: int) -> bytes:
    data = bytearray()
    async for piece in answer.aiter_bytes():
        data += piece
        if len(data) > max_bytes:
            raise LimitExceeded(
                f"{show_url(url)} has more than {max_bytes} bytes",
                hint="put it into the workspace and name it: FilePart(path=…)",
            )
    return bytes(data)


def _parse_file_name(url: str) -> str | None:
    return PurePosixPath(unquote(urlsplit(url).path)).name[:_MAX_SHOWN] or None
