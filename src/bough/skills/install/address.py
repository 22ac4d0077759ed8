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
_SHORT = re.compile(r"([A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:[@#](.+))?")
_SCP = re.compile(r"([\w.-]+@[\w.-]+):(?!//)([^@#]+)(?:[@#](.+))?")
_AT = re.compile(r"(\w[\w+.-]*://[^/]*/[^@#]*[^/@#])[@#](.+)")
_WEB = (
    re.compile(r"/(?P<repo>.+?)/-/(?P<kind>tree|blob)/(?P<rest>.+)"),  # GitLab, also with groups in groups
    re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?P<kind>tree|blob)/(?P<rest>.+)"),  # GitHub
    re.compile(r"/(?P<repo>[^/]+/[^/]+)/src/(?P<kind>branch|tag|commit)/(?P<rest>.+)"),  # Gitea, Codeberg
    re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?P<kind>src)/(?P<rest>.+)"),  # Bitbucket
)


@dataclass(frozen=True, slots=True)
class GitSource:
    """A git repository, and which part of it.

    Attributes:
        ref: A branch, a tag, or 7 to 40 digits of a commit; empty for the default branch.
        path: Only what is below this folder; empty for all.
        ref_and_path: Ref and path of a web address. Refs may contain slashes, so only the repository's list of refs
            tells where the path begins.
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
        """The repository's own name."""
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
        NotFound: It is a path that does not exist.
    """
    path = Path(text).expanduser()
    # Local paths first: `owner/name` may be a folder here, which a repository of the same name must not replace.
    if text and path.is_dir():
        return FolderSource(path) if not ref else GitSource(path.resolve().as_uri(), ref)
    if text and path.is_file():
        return ArchiveSource(path)
    bare = text.removeprefix("git+")
    if match := _SCP.fullmatch(bare):
        return GitSource(f"ssh://{match[1]}/{match[2]}", ref or match[3] or "")
    if "://" in bare:
        return _parse_url(bare, ref, is_git=bare != text)
    # git would run a program for `ext::…`, and read a name that starts with `-` as an option.
    if "::" in bare or bare.startswith("-"):
        raise InvalidInput(f"unsupported source {text[:80]!r}", hint="use https://…, ssh://… or file://…")
    if match := _SHORT.fullmatch(bare):
        return GitSource(f"https://github.com/{match[1]}", ref or match[2] or "")
    raise NotFound(
        f"no such source: {text[:200]!r}",
        hint="pass a folder, an archive, a git repository (url, url@ref, owner/name) or the address of a site",
    )


def _parse_url(text: str, ref: str, *, is_git: bool) -> SkillSource:
    match = _AT.fullmatch(text)
    url, ref_in_url = (match[1], match[2]) if match else (text, "")
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http", "ssh", "file"):
        raise InvalidInput(f"unsupported source {text[:80]!r}", hint="use https://…, ssh://… or file://…")
    # Never git over plain HTTP: nothing would authenticate what is fetched. Sites are checked when they are downloaded.
    if parts.scheme == "http":
        return SiteSource(_add_index_path(text))
    if parts.scheme == "https":
        for form in _WEB:
            if web_match := form.fullmatch(unquote(parts.path).rstrip("/")):
                return _parse_web_address(web_match, parts.netloc, ref or ref_in_url)
    segments = [part for part in parts.path.split("/") if part]
    is_forge = bool(_FORGES.fullmatch(parts.hostname or "")) and len(segments) >= 2
    if is_git or ref_in_url or ref or is_forge or parts.scheme != "https" or parts.path.endswith(".git"):
        return GitSource(url.rstrip("/"), ref or ref_in_url)
    return SiteSource(_add_index_path(text))


def _parse_web_address(match: re.Match[str], host: str, ref: str) -> GitSource:
    ref_and_path = match["rest"].strip("/")
    # The address of a file, usually a SKILL.md, means the folder that contains it.
    if match["kind"] == "blob":
        ref_and_path = ref_and_path.rpartition("/")[0] or ref_and_path
    url = f"https://{host}/{match['repo']}"
    return (
        GitSource(url, ref, path=ref_and_path.removeprefix(ref).strip("/"))
        if ref
        else GitSource(url, ref_and_path=ref_and_path)
    )


def _add_index_path(url: str) -> str:
    return url if url.endswith(".json") else url.rstrip("/") + INDEX
