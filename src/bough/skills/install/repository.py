"""Reading skills from the objects of a git repository, without a checkout: git creates no files and no links.

Filters, attributes and hooks of the repository can therefore neither run nor change what is read.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from bough import git
from bough.errors import ConnectError, InvalidInput, NotFound, Unavailable
from bough.skills.install.address import GitSource
from bough.skills.install.listing import MAX_BYTES, MAX_FILES, SourceEntry, SourceListing

# git also knows protocols that start programs, such as `ext`.
_PROTOCOLS = ("https", "ssh", "file")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_TREE_LINE = re.compile(r"(\d{6}) (\w+) ([0-9a-f]{40,64})\t(.+)", re.DOTALL)
_LINK, _SUBMODULE = "120000", "160000"


def list_repository(source: GitSource, place: Path) -> SourceListing:
    """Return the contents of a commit; only files that belong to skills are read. Blocks.

    Args:
        place: A folder to fetch into, which the caller removes.

    Raises:
        NotFound: It has no such branch, tag or commit.
        ConnectError: It could not be fetched.
    """
    folder = Path(tempfile.mkdtemp(dir=place, prefix="git-"))
    repository = git.Repository(folder / ".git", folder)
    _git(repository, "init", "-q")
    _git(repository, "remote", "add", "origin", source.url)
    refs = _list_refs(repository)
    source = _split_ref_and_path(source, refs)
    commit = _fetch(repository, source, refs)
    entries = _list_tree(repository, commit)
    listing = SourceListing(entries, source.name, source.url, source.owner, commit, source.ref, source.path)
    return replace(listing, entries=_read_blobs(repository, listing))


def _list_refs(repository: git.Repository) -> dict[str, str]:
    """Return the commit of every branch, tag and `HEAD` of the remote; an annotated tag is resolved to its commit."""
    refs: dict[str, str] = {}
    for line in _git(repository, "ls-remote", "origin").splitlines():
        digest, _, name = line.partition("\t")
        # An annotated tag is listed twice: `v1` is the tag object, and `v1^{}`, the next line, is its commit.
        if name.endswith("^{}"):
            refs[name[:-3]] = digest
        else:
            refs.setdefault(name, digest)
    if not refs:
        raise NotFound("the repository is empty", hint="check the address")
    return refs


def _split_ref_and_path(source: GitSource, refs: dict[str, str]) -> GitSource:
    """Split a web address into ref and path, at the longest ref that the repository has."""
    if not source.ref_and_path:
        return source
    parts = source.ref_and_path.split("/")
    # Longest first: `release/1.0/tools` is the folder `tools` of the branch `release/1.0`, also if a tag is `release`.
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count])
        if f"refs/heads/{name}" in refs or f"refs/tags/{name}" in refs or _COMMIT.fullmatch(name):
            return replace(source, ref=name, path="/".join(parts[count:]), ref_and_path="")
    raise NotFound(f"{source.url} has no branch or tag {parts[0]!r}", hint="check the address")


def _fetch(repository: git.Repository, source: GitSource, refs: dict[str, str]) -> str:
    """Fetch one commit, and return its full name."""
    ref = source.ref
    known_commit = refs.get(f"refs/heads/{ref}") or refs.get(f"refs/tags/{ref}") if ref else refs.get("HEAD")
    if known_commit is None and ref and not _COMMIT.fullmatch(ref):
        raise NotFound(f"{source.url} has no branch, tag or commit {ref[:80]!r}", hint="check the name after @")
    if known_commit is None:
        known_commit = next((commit for commit in refs.values() if commit.startswith(ref)), None) if ref else None
    commit_id = known_commit or (ref if len(ref) == 40 else "")
    shallow = ("fetch", "-q", "--depth", "1", "--no-tags", "--filter=blob:none", "origin")
    if commit_id and not _try_git(repository, *shallow, commit_id).code:
        return _git(repository, "rev-parse", f"{commit_id}^{{commit}}").strip()
    # Some servers do not send a commit by its name, and an abbreviated name can only be resolved among all of them.
    _git(repository, "fetch", "-q", "--no-tags", "--filter=blob:none", "origin", "+refs/*:refs/bough/*")
    result = _try_git(repository, "rev-parse", "--verify", "--quiet", f"{commit_id or ref or 'HEAD'}^{{commit}}")
    if result.code:
        raise ConnectError(
            f"{source.url} has no commit {ref[:40]}, or several that start with it", hint="pass more of its digits"
        )
    return result.stdout.strip()


def _list_tree(repository: git.Repository, commit: str) -> dict[str, SourceEntry]:
    """Return the entries of a commit. Files are not read yet: `target` is the name of the git object to read."""
    entries: dict[str, SourceEntry] = {}
    for line in _git(repository, "ls-tree", "-r", "-z", commit).split("\0"):
        if match := _TREE_LINE.fullmatch(line):
            mode, _, name, path = match.groups()
            entry = SourceEntry("other" if mode == _SUBMODULE else "file", mode == "100755", target=name)
            entries[path] = replace(entry, kind="link") if mode == _LINK else entry
    return entries


def _read_blobs(repository: git.Repository, listing: SourceListing) -> dict[str, SourceEntry]:
    """Return the entries with contents: of links, and of every file that a skill contains or links to."""
    links = {path: entry.target for path, entry in listing.entries.items() if entry.kind == "link"}
    targets = _read_objects(repository, sorted(set(links.values())))
    entries = dict(listing.entries)
    for path, name in links.items():
        text = targets[name].decode("utf-8", "surrogateescape")
        entries[path] = replace(entries[path], target=text)
    skills = listing.list_skills()
    paths = {path for skill in skills for path in listing.list_files(skill, skills)}
    linked = replace(listing, entries=entries)
    paths |= {target for path in paths if entries[path].kind == "link" and (target := linked.find_target(path))}
    files = {path: entries[path].target for path in sorted(paths) if entries[path].kind == "file"}
    contents = _read_objects(repository, sorted(set(files.values())), is_bounded=True)
    for path, name in files.items():
        data = contents[name]
        entries[path] = replace(entries[path], size=len(data), read=partial(bytes, data), target="")
    return entries


def _read_objects(repository: git.Repository, names: list[str], *, is_bounded: bool = False) -> dict[str, bytes]:
    """Return the contents of blobs by name; blobs that the filtered fetch omitted are fetched in one request."""
    if not names:
        return {}
    local_sizes = _list_objects(repository)
    if missing := [name for name in names if name not in local_sizes]:
        # Through stdin: the names of thousands of objects would exceed the length of a command line.
        _git(repository, "fetch", "-q", "--no-tags", "--no-write-fetch-head", "--stdin", "origin",
             stdin="".join(f"{name}\n" for name in missing))  # fmt: skip
        local_sizes = _list_objects(repository)
    request = "".join(f"{name}\n" for name in names)
    sizes = [local_sizes.get(name, 0) for name in names]
    # Sizes are checked before the contents are read, which happens in memory.
    if is_bounded and (sum(sizes) > 4 * MAX_BYTES or len(sizes) > 20 * MAX_FILES):
        raise InvalidInput("the skills of the repository are too large", hint="select some of them with --path DIR")
    return dict(_parse_batch(_git(repository, "cat-file", "--batch", stdin=request).encode("utf-8", "surrogateescape")))


def _list_objects(repository: git.Repository) -> dict[str, int]:
    """Return the size of every local object. Asking for a missing one would make git fetch it, one request each."""
    listed = _git(repository, "cat-file", "--batch-check=%(objectname) %(objectsize)", "--batch-all-objects")
    return {name: int(size) for name, _, size in (line.partition(" ") for line in listed.splitlines())}


def _parse_batch(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        words = data[at:end].split()
        if len(words) != 3:  # `NAME missing` instead of `NAME TYPE SIZE`
            raise ConnectError(f"could not fetch object {words[0].decode()}", hint="try again")
        size = int(words[2])
        yield words[0].decode(), data[end + 1 : end + 1 + size]
        at = end + 1 + size + 1


def _git(repository: git.Repository, *arguments: str, stdin: str = "") -> str:
    ran = _try_git(repository, *arguments, stdin=stdin)
    if ran.code:
        reason = ran.stderr.strip().splitlines()[-1:] or [""]
        raise ConnectError(f"git {arguments[0]} failed: {reason[0]}", hint="check the address and the name after @")
    return ran.stdout


def _try_git(repository: git.Repository, *arguments: str, stdin: str = "") -> git.GitOutput:
    try:
        return git.run(repository.work_tree, *arguments, repository=repository, protocols=_PROTOCOLS, stdin=stdin)
    except Unavailable as error:
        raise ConnectError(error.message, hint=f"{error.hint}, or install from an archive") from error
