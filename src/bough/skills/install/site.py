"""Downloading the skills in a site's index, each verified against its digest in the index.

Source: Agent Skills Discovery RFC 0.2 (`.well-known/agent-skills/index.json` with digests).
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urljoin, urlsplit

from bough.errors import ConnectError, InvalidInput
from bough.skills.install.archive import list_archive, refuse_size
from bough.skills.install.listing import SourceEntry, SourceListing
from bough.skills.read.fields import normalize_name

MAX_DOWNLOAD: Final = 50 << 20
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def list_site(index: str) -> SourceListing:
    """Download every skill of a site's index, each into a folder of its name.

    Raises:
        InvalidInput: The index is invalid, or a skill does not match its digest.
        ConnectError: It could not be fetched.
    """
    entries: dict[str, SourceEntry] = {}
    for name, kind, url, digest in _read_index(index):
        content = _download(urljoin(index, url))
        # Verified before it is parsed: nothing unverified reaches the code that unpacks archives.
        if hashlib.sha256(content).hexdigest() != digest:
            raise InvalidInput(f"{url} does not match its digest in the index", hint="report it to the site's owner")
        if kind == "skill-md":
            entries[f"{name}/SKILL.md"] = SourceEntry("file", False, len(content), partial(bytes, content))
            continue
        packed = list_archive(content, urlsplit(url).path, index)
        entries |= {f"{name}/{path}": entry for path, entry in packed.entries.items()}
    host = (urlsplit(index).hostname or "site").removeprefix("www.")
    return SourceListing(entries, host, index, owner=host)


def _read_index(index: str) -> list[tuple[str, str, str, str]]:
    try:
        data: Any = json.loads(_download(index))
        return [_parse_entry(entry) for entry in cast("list[Any]", data["skills"])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"not an index of skills: {index}: {error!r}", hint="see the Agent Skills Discovery RFC"
        ) from error


def _parse_entry(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    name, kind, url, digest = entry["name"], entry["type"], entry["url"], entry["digest"]
    match = re.fullmatch(r"sha256:([0-9a-f]{64})", digest)
    if normalize_name(name) is None or kind not in ("skill-md", "archive") or match is None or not isinstance(url, str):
        raise ValueError(f"bad entry {name!r}")
    return name, kind, url, match[1]


def _download(url: str) -> bytes:
    parts = urlsplit(url)
    # The digests come from the index, so the index itself must be authenticated, except on this machine.
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InvalidInput(f"unsupported address {url[:120]}", hint="use an https address")
    try:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - the scheme is checked above
            # urllib follows redirects, also from https to http.
            final_url = str(response.url)
            if urlsplit(final_url).scheme != parts.scheme:
                raise InvalidInput(f"{url} redirects to {final_url[:120]}", hint="use an address that stays on https")
            data = response.read(MAX_DOWNLOAD + 1)
    except (urllib.error.URLError, OSError) as error:
        raise ConnectError(f"could not fetch {url}: {error}", hint="check the address") from error
    if len(data) > MAX_DOWNLOAD:
        refuse_size(url)
    return data
