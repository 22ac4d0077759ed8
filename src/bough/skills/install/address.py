"""Parsing the source of a skill as the user writes it: a folder, an archive, a git repository or a site.

Source: git's documentation of URLs; the web addresses of GitHub, GitLab, Gitea, Codeberg and Bitbucket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from bough.errors import InvalidInput, NotFound

INDEX: Final = "/.well-known/agent-skills/index.json"
ARCHIVES: Final = (".zip", ".tar.gz", ".tgz", ".tar")

_FORGES = re.compile(r"(?:[\w.-]*\.)?(?:github|gitlab|bitbucket|codeberg|gitea|sourcehut|sr)\.\w+")
_OWNER_AND_NAME = re.compile(r"([A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:[@#](.+))?")
_SCP_ADDRESS = re.compile(r"([\w.-]+@[\w.-]+):(?!//)([^@#]+)(?:[@#](.+))?")
_URL_WITH_REF = re.compile(r"(\w[\w+.-]*://[^/]*/[^@#]*[^/@#])[@#](.+)")
_WEB_PATHS = (
    re.compile(r"/(?P<repo>.+?)/-/(?P<kind>tree|blob)/(?P<rest>.+)"),  # GitLab, also with groups in groups
    re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?P<kind>tree|blob)/(?P<rest>.+)"),  # GitHub
    re.compile(r"/(?P<repo>[^/]+/[^/]+)/src/(?P<kind>branch|tag|commit)/(?P<rest>.+)"),  # Gitea, Codeberg
    re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?P<kind>src)/(?P<rest>.+)"),  # Bitbucket
)


@dataclass(frozen=True, slots=True)
class GitSource:
    """A git repository, and the part of it to read.

    Attributes:
        ref: A branch, a tag, or 7 to 40 digits of a commit; empty for the default branch.
        path: The folder to read; empty for the whole repository.
        ref_and_path: The end of a web address, if it is not split yet. Refs may contain slashes, so the repository's
            list of refs is needed to tell where the path begins.
    """

    url: str
    ref: str = ""
    path: str = ""
    ref_and_path: str = ""

    @property
    def owner(self) -> str:
        """The owner of the repository, from its address; empty if unknown."""
        parts = [part for part in re.split(r"[/:]", self.url) if part]
        return parts[-2] if len(parts) > 2 and "." not in parts[-2] else ""

    @property
    def name(self) -> str:
        """The name of the repository, without its owner."""
        return re.split(r"[/:]", self.url.rstrip("/"))[-1].removesuffix(".git") or "repository"


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder of this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """A zip or tar file of this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class SiteSource:
    """A site with an index of skills; `url` is the address of the index."""

    url: str


SkillSource: TypeAlias = GitSource | FolderSource | ArchiveSource | SiteSource


def parse_source(text: str, *, ref: str = "") -> SkillSource:
    """Return the source that `text` names.

    Args:
        ref: A branch, tag or commit given separately from the address.

    Raises:
        InvalidInput: The address is not supported.
        NotFound: `text` is a path that does not exist.
    """
    path = Path(text).expanduser()
    # Local paths first: a folder `owner/name` on this machine takes precedence over a repository of that name.
    if text and path.is_dir():
        return GitSource(path.resolve().as_uri(), ref) if ref else FolderSource(path)
    if text and path.is_file():
        return ArchiveSource(path)
    address = text.removeprefix("git+")
    if match := _SCP_ADDRESS.fullmatch(address):
        return GitSource(f"ssh://{match[1]}/{match[2]}", ref or match[3] or "")
    if "://" in address:
        return _parse_url(address, ref, is_git=address != text)
    # git would run a program for `ext::…`, and take a name that starts with `-` for an option.
    if "::" in address or address.startswith("-"):
        raise InvalidInput(f"unsupported source {text[:80]!r}", hint="use https://…, ssh://… or file://…")
    if match := _OWNER_AND_NAME.fullmatch(address):
        return GitSource(f"https://github.com/{match[1]}", ref or match[2] or "")
    raise NotFound(
        f"no such source: {text[:200]!r}",
        hint="pass a folder, an archive, a git repository (url, url@ref, owner/name) or the address of a site",
    )


def _parse_url(text: str, ref: str, *, is_git: bool) -> SkillSource:
    """Return the source of a URL: a repository if its form or its host suggests one, else a site."""
    match = _URL_WITH_REF.fullmatch(text)
    url, ref_in_url = (match[1], match[2]) if match else (text, "")
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http", "ssh", "file"):
        raise InvalidInput(f"unsupported source {text[:80]!r}", hint="use https://…, ssh://… or file://…")
    # Never git over plain HTTP, which authenticates nothing. The address of a site is checked when it is downloaded.
    if parts.scheme == "http":
        return SiteSource(_add_index_path(text))
    if parts.scheme == "https":
        for pattern in _WEB_PATHS:
            if web_match := pattern.fullmatch(unquote(parts.path).rstrip("/")):
                return _parse_web_address(web_match, parts.netloc, ref or ref_in_url)
    segments = [part for part in parts.path.split("/") if part]
    is_forge = bool(_FORGES.fullmatch(parts.hostname or "")) and len(segments) >= 2
    if is_git or ref_in_url or ref or is_forge or parts.scheme != "https" or parts.path.endswith(".git"):
        return GitSource(url.rstrip("/"), ref or ref_in_url)
    return SiteSource(_add_index_path(text))


def _parse_web_address(match: re.Match[str], host: str, ref: str) -> GitSource:
    """Return the repository of a web page that shows one of its folders or files."""
    ref_and_path = match["rest"].strip("/")
    # The address of a file, usually a SKILL.md, stands for the folder that contains it.
    if match["kind"] == "blob":
        ref_and_path = ref_and_path.rpartition("/")[0] or ref_and_path
    url = f"https://{host}/{match['repo']}"
    if ref:
        return GitSource(url, ref, path=ref_and_path.removeprefix(ref).strip("/"))
    return GitSource(url, ref_and_path=ref_and_path)


def _add_index_path(url: str) -> str:
    return url if url.endswith(".json") else url.rstrip("/") + INDEX
