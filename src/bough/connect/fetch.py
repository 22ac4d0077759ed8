"""Fetch what a URL names: public addresses over HTTPS, within bounds, each redirect checked again."""

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
"""For all of it: names, redirects, the last byte."""

MAX_REDIRECTS = 5

_MAX_SHOWN = 200
_HINT = "check the URL, or give the file itself"


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What was at a URL.

    Attributes:
        name: The last part of the path that it came from; None where that has none.
    """

    data: bytes
    name: str | None


async def fetch(url: str, *, max_bytes: int, networks: Sequence[str] = ()) -> Fetched:
    """Return what is at a URL, at most `max_bytes`, within `SECONDS`.

    No environment variable and no cookie has a say in it. The address that was checked is the one that is connected to.

    Args:
        networks: Private networks that it may lead to, over plain HTTP too.

    Raises:
        InvalidInput: It is not an address of HTTP, or its name is not known, or nothing is there.
        PermissionDenied: It, or a redirect of it, leads to this machine or a private network, or is not encrypted.
        LimitExceeded: There is more than `max_bytes`.
        ConnectError: The server does not answer, or not in time.
    """
    import httpx2

    try:
        async with (
            asyncio.timeout(SECONDS),
            httpx2.AsyncClient(timeout=SECONDS, follow_redirects=False, trust_env=False) as http,
        ):
            return await _follow(http, url, max_bytes, networks)
    except (httpx2.HTTPError, TimeoutError) as error:
        why = str(error) or f"no answer within {SECONDS:g} s"
        raise ConnectError(f"{show_url(url)} cannot be fetched: {why}", hint=_HINT) from error


def show_url(url: str) -> str:
    """Return a URL as messages show it: without password and query, which may hold a key, and not too long."""
    try:
        parts = urlsplit(url)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        shown = url
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"


async def _follow(http: httpx2.AsyncClient, url: str, max_bytes: int, networks: Sequence[str]) -> Fetched:
    """Return what is at the end of the redirects."""
    place = url
    for _ in range(MAX_REDIRECTS + 1):
        address = await _check(url, place, networks)
        headers = {"Host": address.host, "Accept-Encoding": "identity"}
        # The certificate is the name's, although the number that was checked is connected to.
        extensions = {"sni_hostname": address.host.partition(":")[0]}
        async with http.stream("GET", address.url, headers=headers, extensions=extensions) as answer:
            if answer.has_redirect_location:
                place = urljoin(place, answer.headers["location"])
                continue
            if not answer.is_success:
                raise InvalidInput(
                    f"{show_url(url)} cannot be fetched: the server answers {answer.status_code}",
                    hint=_HINT,
                )
            return Fetched(data=await _read(answer, url, max_bytes), name=_name_of(place))
    raise InvalidInput(
        f"{show_url(url)} cannot be fetched: more than {MAX_REDIRECTS} redirects", hint="give the URL that they lead to"
    )


async def _check(url: str, place: str, networks: Sequence[str]) -> CheckedAddress:
    try:
        return await check_address(place, networks, setting="fetch_networks")
    except BoughError as error:
        leads = "" if place == url else f", which leads to {show_url(place)}"
        error.message = f"{show_url(url)}{leads} cannot be fetched: {error.message.removeprefix('url: ')}"
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


def _name_of(url: str) -> str | None:
    return PurePosixPath(unquote(urlsplit(url).path)).name[:_MAX_SHOWN] or None
