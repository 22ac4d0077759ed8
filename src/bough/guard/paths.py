"""Findings about paths: outside the workspace after following links, credentials, and files that control later runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from bough.guard.risk import Risk, RiskFinding

_HARMLESS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty"})
_READABLE_DEVICES = frozenset({"/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"})

_CREDENTIALS = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.azure|\.password-store|gcloud)(/|$)"
    r"|(^|/)(\.netrc|\.pgpass|\.git-credentials|\.pypirc|\.npmrc|\.vault-token|id_(rsa|dsa|ecdsa|ed25519))$"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/[^/]+/(environ|mem)$|^/dev/(mem|kmem)$"
)
"""Where keys and passwords are stored by convention. Reading one is HIGH even inside the workspace."""

_STEERING = re.compile(
    r"(^|/)\.git/(hooks(/|$)|config$|info/attributes$)"
    r"|(^|/)\.(bough|openhands|claude)(/|$)|(^|/)bough\.yaml$|(^|/)\.envrc$"
    r"|(^|/)\.(bashrc|bash_profile|bash_login|bash_logout|bash_history|profile|zshrc|zshenv|zprofile|zsh_history)$"
)
"""Files that decide what runs later, or what an agent may do. Writing one bypasses all other rules."""


def path_findings(path: str, *, workspace: Path, bases: Sequence[Path] = (), write: bool) -> Iterator[RiskFinding]:
    """Yield the findings about reading or writing a path; none for a safe one. Follows links on disk.

    Args:
        workspace: Absolute.
        bases: Folders that a relative path may start from; empty for the workspace only.
        write: Whether the path is, or may be, changed.
    """
    if _is_harmless(path) or not path or "\0" in path:  # no system call accepts a path with a NUL
        return
    for place in dict.fromkeys(_resolve_from(path, base) for base in bases or (workspace,)):
        # Patterns are matched after links are followed: `notes -> ~/.ssh/id_rsa` must not hide a key behind its name.
        if _CREDENTIALS.search(place):
            yield RiskFinding(Risk.HIGH, f"{_short(path)} is where keys and passwords are kept")
        elif write and _STEERING.search(place):
            yield RiskFinding(Risk.HIGH, f"writing {_short(path)} changes what runs later")
        elif not _is_inside(place, workspace) and (write or place not in _READABLE_DEVICES):
            yield _outside(path, write)


def _is_harmless(path: str) -> bool:
    return path in _HARMLESS or re.fullmatch(r"/dev/fd/\d+", path) is not None


def leads_outside(path: str, *, workspace: Path) -> bool:
    """Whether a path is outside the workspace after links, `..` and `~` are resolved."""
    return not _is_harmless(path) and not _is_inside(_resolve_from(path, workspace), workspace)


def _outside(path: str, write: bool) -> RiskFinding:
    if write:
        return RiskFinding(Risk.HIGH, f"writes outside the workspace: {_short(path)}")
    return RiskFinding(Risk.MEDIUM, f"reads outside the workspace: {_short(path)}")


def _resolve_from(path: str, base: Path) -> str:
    """Return the real path, with `~` expanded and links followed."""
    expanded = os.path.expanduser(path) if path.startswith("~") else path
    if expanded.startswith("~"):  # no such user; joined to `base` it would look like a file of the workspace
        expanded = f"/{expanded}"
    return _resolve(os.path.join(base, expanded))


def _resolve(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # too long, or not encodable: no such file can exist
        return os.path.normpath(path)


def _is_inside(place: str, workspace: Path) -> bool:
    if place.startswith(f"{workspace}/"):  # `place` is resolved, so this prefix of it contains no link either
        return True
    # The workspace itself may be reached through a link, such as /tmp on macOS.
    root = _resolve(str(workspace))
    return place == root or place.startswith(root.rstrip("/") + "/")


def pattern_findings(pattern: str, *, workspace: Path, write: bool) -> Iterator[RiskFinding]:
    """Yield the findings about the entries of a folder that match a pattern. Links are followed.

    Lists the folder once; one with more than 1,000 entries is UNKNOWN.
    """
    head, tail = os.path.split(pattern)
    if re.search(r"[*?\[]", head):  # would have to list a tree of any size
        yield RiskFinding(Risk.UNKNOWN, f"what {_short(pattern)} matches is not known")
        return
    try:
        names = sorted(os.listdir(_resolve_from(head or ".", workspace)))
    except (OSError, ValueError):  # nothing to match
        return
    if len(names) > 1000:
        yield RiskFinding(Risk.UNKNOWN, f"{_short(pattern)} may match too many files to look at")
        return
    for name in names:
        if fnmatch(name, tail):
            yield from path_findings(os.path.join(head, name), workspace=workspace, write=write)


def _short(path: str) -> str:
    text = path if len(path) <= 80 else path[:77] + "…"
    return repr(text)
