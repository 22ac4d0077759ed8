"""Reading skills from the objects of a git repository, without a checkout.

git creates no files and no links, so filters, attributes and hooks of the repository cannot run or change what is read.
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

# Only these, because git also supports protocols that start programs, such as `ext`.
_PROTOCOLS = ("https", "ssh", "file")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_TREE_LINE = re.compile(r"(\d{6}) (\w+) ([0-9a-f]{40,64})\t(.+)", re.DOTALL)
_LINK, _SUBMODULE = "120000", "160000"
"""File modes in git's tree objects."""


def list_repository(source: GitSource, staging_folder: Path) -> SourceListing:
    """Return the contents of a commit; only files that belong to skills are read. Blocks.

    Args:
        staging_folder: The folder for the fetched objects, which the caller removes.

    Raises:
        NotFound: The repository has no such branch, tag or commit.
        ConnectError: The repository could not be fetched.
    """
    folder = Path(tempfile.mkdtemp(dir=staging_folder, prefix="git-"))
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
    """Return the commits of `HEAD` and of all branches and tags of the remote, by ref."""
    refs: dict[str, str] = {}
    for line in _git(repository, "ls-remote", "origin").splitlines():
        commit, _, ref = line.partition("\t")
        # An annotated tag is listed twice: `v1` is the tag object, and `v1^{}`, the next line, is its commit.
        if ref.endswith("^{}"):
            refs[ref[:-3]] = commit
        else:
            refs.setdefault(ref, commit)
    if not refs:
        raise NotFound("the repository is empty", hint="check the address")
    return refs


def _split_ref_and_path(source: GitSource, refs: dict[str, str]) -> GitSource:
    """Split the end of a web address into ref and path, at the longest ref that the repository has."""
    if not source.ref_and_path:
        return source
    parts = source.ref_and_path.split("/")
    # Longest first: `release/1.0/tools` is `tools` in the branch `release/1.0`, even if there is a tag `release`.
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count])
        if f"refs/heads/{name}" in refs or f"refs/tags/{name}" in refs or _COMMIT.fullmatch(name):
            return replace(source, ref=name, path="/".join(parts[count:]), ref_and_path="")
    raise NotFound(f"{source.url} has no branch or tag {parts[0]!r}", hint="check the address")


def _fetch(repository: git.Repository, source: GitSource, refs: dict[str, str]) -> str:
    """Fetch the requested commit, and return its full hash."""
    ref = source.ref
    ref_names = (f"refs/heads/{ref}", f"refs/tags/{ref}") if ref else ("HEAD",)
    known_commit = next((refs[name] for name in ref_names if name in refs), None)
    if known_commit is None and ref:
        if not _COMMIT.fullmatch(ref):
            raise NotFound(f"{source.url} has no branch, tag or commit {ref[:80]!r}", hint="check the name after @")
        known_commit = next((commit for commit in refs.values() if commit.startswith(ref)), None)
    commit_id = known_commit or (ref if len(ref) == 40 else "")
    shallow = ("fetch", "-q", "--depth", "1", "--no-tags", "--filter=blob:none", "origin")
    if commit_id and not _try_git(repository, *shallow, commit_id).code:
        return _git(repository, "rev-parse", f"{commit_id}^{{commit}}").strip()
    # Some servers do not send a commit by its hash, and an abbreviated hash can be resolved only among all commits.
    _git(repository, "fetch", "-q", "--no-tags", "--filter=blob:none", "origin", "+refs/*:refs/bough/*")
    result = _try_git(repository, "rev-parse", "--verify", "--quiet", f"{commit_id or ref or 'HEAD'}^{{commit}}")
    if result.code:
        raise ConnectError(
            f"{source.url} has no commit {ref[:40]}, or several that start with it", hint="pass more of its digits"
        )
    return result.stdout.strip()


def _list_tree(repository: git.Repository, commit: str) -> dict[str, SourceEntry]:
    """Return the entries of a commit. No contents are read: `target` is the hash of the git object to read."""
    entries: dict[str, SourceEntry] = {}
    for line in _git(repository, "ls-tree", "-r", "-z", commit).split("\0"):
        if match := _TREE_LINE.fullmatch(line):
            mode, _, object_id, path = match.groups()
            entry = SourceEntry("other" if mode == _SUBMODULE else "file", mode == "100755", target=object_id)
            entries[path] = replace(entry, kind="link") if mode == _LINK else entry
    return entries


def _read_blobs(repository: git.Repository, listing: SourceListing) -> dict[str, SourceEntry]:
    """Return the entries with the targets of all links, and the contents of files that skills contain or link to."""
    links = {path: entry.target for path, entry in listing.entries.items() if entry.kind == "link"}
    link_targets = _read_objects(repository, sorted(set(links.values())))
    entries = dict(listing.entries)
    for path, object_id in links.items():
        target = link_targets[object_id].decode("utf-8", "surrogateescape")
        entries[path] = replace(entries[path], target=target)
    skills = listing.list_skills()
    paths = {path for skill in skills for path in listing.list_files(skill, skills)}
    resolved_listing = replace(listing, entries=entries)
    links_of_skills = [path for path in paths if entries[path].kind == "link"]
    paths |= {target for path in links_of_skills if (target := resolved_listing.find_target(path))}
    file_objects = {path: entries[path].target for path in sorted(paths) if entries[path].kind == "file"}
    contents = _read_objects(repository, sorted(set(file_objects.values())), is_bounded=True)
    for path, object_id in file_objects.items():
        data = contents[object_id]
        entries[path] = replace(entries[path], size=len(data), read=partial(bytes, data), target="")
    return entries


def _read_objects(repository: git.Repository, object_ids: list[str], *, is_bounded: bool = False) -> dict[str, bytes]:
    """Return the contents of blobs by hash; blobs that the filtered fetch omitted are fetched in one request."""
    if not object_ids:
        return {}
    local_sizes = _list_objects(repository)
    if missing := [name for name in object_ids if name not in local_sizes]:
        # On stdin, because thousands of hashes would exceed the maximum length of a command line.
        _git(repository, "fetch", "-q", "--no-tags", "--no-write-fetch-head", "--stdin", "origin",
             stdin="".join(f"{name}\n" for name in missing))  # fmt: skip
        local_sizes = _list_objects(repository)
    batch = "".join(f"{name}\n" for name in object_ids)
    sizes = [local_sizes.get(name, 0) for name in object_ids]
    # The sizes are checked first, because the contents are read into memory.
    if is_bounded and (sum(sizes) > 4 * MAX_BYTES or len(sizes) > 20 * MAX_FILES):
        raise InvalidInput("the skills of the repository are too large", hint="select some of them with --path DIR")
    return dict(_parse_batch(_git(repository, "cat-file", "--batch", stdin=batch).encode("utf-8", "surrogateescape")))


def _list_objects(repository: git.Repository) -> dict[str, int]:
    """Return the sizes of all local objects. All, because git would fetch each missing object that it is asked for."""
    output = _git(repository, "cat-file", "--batch-check=%(objectname) %(objectsize)", "--batch-all-objects")
    return {name: int(size) for name, _, size in (line.partition(" ") for line in output.splitlines())}


def _parse_batch(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (hash, contents) of each object in the output of `git cat-file --batch`."""
    position = 0
    while position < len(data):
        header_end = data.index(b"\n", position)
        header = data[position:header_end].split()
        if len(header) != 3:  # `NAME missing` instead of `NAME TYPE SIZE`
            raise ConnectError(f"could not fetch object {header[0].decode()}", hint="try again")
        size = int(header[2])
        yield header[0].decode(), data[header_end + 1 : header_end + 1 + size]
        position = header_end + 1 + size + 1


def _git(repository: git.Repository, *arguments: str, stdin: str = "") -> str:
    """Run git on the repository and return its output; raise `ConnectError` if it fails."""
    result = _try_git(repository, *arguments, stdin=stdin)
    if result.code:
        reason = result.stderr.strip().splitlines()[-1:] or [""]
        raise ConnectError(f"git {arguments[0]} failed: {reason[0]}", hint="check the address and the name after @")
    return result.stdout


def _try_git(repository: git.Repository, *arguments: str, stdin: str = "") -> git.GitOutput:
    try:
        return git.run(repository.work_tree, *arguments, repository=repository, protocols=_PROTOCOLS, stdin=stdin)
    except Unavailable as error:
        raise ConnectError(error.message, hint=f"{error.hint}, or install from an archive") from error
