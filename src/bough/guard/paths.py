"""Where a path leads: into the workspace or out of it, links followed; and which places are nobody's to touch."""

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
"""Files that hold keys and passwords by custom; reading one is never routine."""

_STEERING = re.compile(
    r"(^|/)\.git/(hooks(/|$)|config$|info/attributes$)"
    r"|(^|/)\.(bough|openhands|claude)(/|$)|(^|/)bough\.yaml$|(^|/)\.envrc$"
    r"|(^|/)\.(bashrc|bash_profile|bash_login|bash_logout|bash_history|profile|zshrc|zshenv|zprofile|zsh_history)$"
)
"""Files that decide what runs later, or what an agent may do: writing one is a way around every other rule."""


def path_findings(path: str, *, workspace: Path, bases: Sequence[Path] = (), write: bool) -> Iterator[RiskFinding]:
    """Yield what is to be said of reading or writing a path; nothing for one that is safe. Looks at links on disk.

    Args:
        workspace: Absolute.
        bases: Folders a relative path may start from; the workspace alone when empty.
        write: Whether it is (or may be) changed.
    """
    if _harmless(path) or not path or "\0" in path:
        return
    for place in dict.fromkeys(_place(path, base) for base in bases or (workspace,)):
        if _CREDENTIALS.search(place):
            yield RiskFinding(Risk.HIGH, f"{_short(path)} is where keys and passwords are kept")
        elif write and _STEERING.search(place):
            yield RiskFinding(Risk.HIGH, f"writing {_short(path)} changes what runs later")
        elif not _inside(place, workspace) and (write or place not in _READABLE_DEVICES):
            yield _outside(path, write)


def _harmless(path: str) -> bool:
    return path in _HARMLESS or re.fullmatch(r"/dev/fd/\d+", path) is not None


def leads_outside(path: str, *, workspace: Path) -> bool:
    """Whether a path ends outside the workspace after links, `..` and `~` are resolved."""
    return not _harmless(path) and not _inside(_place(path, workspace), workspace)


def _outside(path: str, write: bool) -> RiskFinding:
    if write:
        return RiskFinding(Risk.HIGH, f"writes outside the workspace: {_short(path)}")
    return RiskFinding(Risk.MEDIUM, f"reads outside the workspace: {_short(path)}")


def _place(path: str, base: Path) -> str:
    """The real place of a path. A home folder is looked up, never guessed; a pattern is followed up to its mark."""
    expanded = os.path.expanduser(path) if path.startswith("~") else path
    if expanded.startswith("~"):
        expanded = f"/{expanded}"
    return _resolve(os.path.join(base, expanded))


def _resolve(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # too long, or no text a file system takes: nothing can be there
        return os.path.normpath(path)


def _inside(place: str, workspace: Path) -> bool:
    if place.startswith(f"{workspace}/"):  # a resolved place goes through no link, so neither does the workspace
        return True
    root = _resolve(str(workspace))
    return place == root or place.startswith(root.rstrip("/") + "/")


def pattern_findings(pattern: str, *, workspace: Path, write: bool) -> Iterator[RiskFinding]:
    """Yield what is to be said of the entries a pattern of one folder matches; links in it are followed.

    Cost: one look into the folder, at most 1,000 entries; a larger one is UNKNOWN.
    """
    head, tail = os.path.split(pattern)
    if re.search(r"[*?\[]", head):
        yield RiskFinding(Risk.UNKNOWN, f"what {_short(pattern)} matches is not known")
        return
    try:
        names = sorted(os.listdir(_place(head or ".", workspace)))
    except (OSError, ValueError):
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
