#!/usr/bin/env python3
"""Print a digest of a git history: commits per author, day and folder, and the latest subjects."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FORMAT = "%x1e%h%x1f%aN%x1f%aE%x1f%ad%x1f%s%x1f"
BAR_WIDTH = 20
MAX_NAME = 44


class Refused(Exception):
    """The history cannot be read; the message says why."""


@dataclass(frozen=True)
class Commit:
    """One commit: short hash, author, day as YYYY-MM-DD, subject, and the folders it touched."""

    hash: str
    author: str
    mail: str
    day: str
    subject: str
    folders: frozenset[str]


def git(folder: Path, *args: str) -> str:
    """Return what a git command prints; it may not write, page or ask, and any owner of the folder is fine."""
    command = ["git", "-c", "safe.directory=*", "-c", "core.quotePath=false", "-c", "log.showSignature=false"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            [*command, "-C", str(folder), *args], env=environment, stdin=subprocess.DEVNULL, capture_output=True
        )
    except FileNotFoundError as error:
        raise Refused("git is not installed here") from error
    if done.returncode != 0:
        raise Refused(done.stderr.decode("utf-8", "replace").strip() or f"git ended with code {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def commits(folder: Path, *, since: str | None, until: str | None) -> Iterator[Commit]:
    """Yield the commits of the current branch, newest first, merges left out."""
    if not folder.is_dir():
        raise Refused(f"{folder} is not a folder")
    limits = [f"--{name}={value}" for name, value in (("since", since), ("until", until)) if value]
    log = git(folder, "log", "--no-merges", "--date=short", f"--format={FORMAT}", "--name-only", "-z", *limits, "--")
    for record in log.split("\x1e")[1:]:
        hash_, author, mail, day, subject, files = record.split("\x1f", 5)
        folders = frozenset(top_folder(path) for path in files.strip("\0\n").split("\0") if path.strip())
        yield Commit(hash_, author, mail.lower(), day, subject, folders)


def top_folder(path: str) -> str:
    """Return the first folder of a path, `.` for a file at the top."""
    first, slash, _ = path.strip("\n").partition("/")
    return f"{first}/" if slash else "."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it must be."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(title: str, counts: Counter[str], top: int, *, by_name: bool = False) -> Iterator[str]:
    """Yield a heading and a line with a bar for each of the largest counts."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = sorted(counts.items(), reverse=True)[:top] if by_name else ranked[:top]
    width, most = max(len(name[:MAX_NAME]) for name, _ in shown), max(count for _, count in shown)
    yield ""
    yield title
    for name, count in shown:
        yield f"  {name[:MAX_NAME]:<{width}}  {count:>5}  {'#' * max(1, round(BAR_WIDTH * count / most))}"
    if len(counts) > len(shown):
        yield f"  and {len(counts) - len(shown)} more"


def digest(found: list[Commit], top: int) -> Iterator[str]:
    """Yield the report of at least one commit."""
    names = {commit.mail: commit.author for commit in reversed(found)}
    days = sorted(commit.day for commit in found)
    yield f"{counted(len(found), 'commit')} by {counted(len(names), 'author')}, {days[0]} to {days[-1]}"
    yield from table("Commits per author", Counter(f"{names[c.mail]} <{c.mail}>" for c in found), top)
    yield from table("Commits per day, newest first", Counter(days), top, by_name=True)
    folders = Counter(folder for commit in found for folder in commit.folders)
    if folders:
        yield from table("Commits per folder", folders, top)
    yield ""
    yield "Latest"
    for commit in found[:top]:
        yield f"  {commit.hash}  {commit.day}  {commit.subject}"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the parsed arguments; ends with exit code 2 and the usage when they are wrong."""
    parser = argparse.ArgumentParser(description="Digest the history of a git repository.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="a folder of the repository")
    parser.add_argument("--since", help="only commits after this time")
    parser.add_argument("--until", help="only commits before this time")
    parser.add_argument("--top", type=int, default=10, help="how many lines each table has")
    args = parser.parse_args(argv)
    if args.top < 1:
        parser.error("--top takes a number from 1")
    return args


def main(argv: list[str] | None = None) -> int:
    """Print the digest and return the exit code: 0, 1 when there is no history to read, 2 for wrong arguments."""
    args = arguments(argv)
    try:
        found = list(commits(args.folder, since=args.since, until=args.until))
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(digest(found, args.top)) if found else "no commits in that time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
