"""Findings about paths: outside the workspace after following links, credentials, and files that control later runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from bough.guard.risk import Risk, RiskFinding

_HARMLESS_DEVICES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty"})
_MAX_ENTRIES = 1000
_READABLE_DEVICES = frozenset({"/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"})

_CREDENTIAL_PATHS = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.azure|\.password-store|gcloud)(/|$)"
    r"|(^|/)(\.netrc|\.pgpass|\.git-credentials|\.pypirc|\.npmrc|\.vault-token|id_(rsa|dsa|ecdsa|ed25519))$"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/[^/]+/(environ|mem)$|^/dev/(mem|kmem)$"
)
"""Paths where keys and passwords are stored by convention. Reading one is HIGH, even inside the workspace."""

_CONTROL_PATHS = re.compile(
    r"(^|/)\.git/(hooks(/|$)|config$|info/attributes$)"
    r"|(^|/)\.(bough|openhands|claude)(/|$)|(^|/)bough\.yaml$|(^|/)\.envrc$"
    r"|(^|/)\.(bashrc|bash_profile|bash_login|bash_logout|bash_history|profile|zshrc|zshenv|zprofile|zsh_history)$"
)
"""Files that determine which programs run later, or what an agent may do. Writing one can bypass all other rules."""


def assess_path(path: str, *, workspace: Path, bases: Sequence[Path] = (), write: bool) -> Iterator[RiskFinding]:
    """Yield the findings about reading or writing a path; none for a harmless one. Follows links on disk.

    Args:
        workspace: An absolute path.
        bases: Folders that a relative path may start from; if empty, only the workspace.
        write: Whether the path is changed, or may be.
    """
    if _is_harmless_device(path) or not path or "\0" in path:  # no system call accepts a path with a NUL
        return
    for real_path in dict.fromkeys(_resolve_from(path, base) for base in bases or (workspace,)):
        # The real path is checked, so that the name of a link such as `notes -> ~/.ssh/id_rsa` cannot hide a key.
        if _CREDENTIAL_PATHS.search(real_path):
            yield RiskFinding(Risk.HIGH, f"{_shorten(path)} is where keys or passwords are stored")
        elif write and _CONTROL_PATHS.search(real_path):
            yield RiskFinding(Risk.HIGH, f"writing {_shorten(path)} changes what runs later")
        elif not _is_inside(real_path, workspace) and (write or real_path not in _READABLE_DEVICES):
            yield _make_outside_finding(path, write)


def _is_harmless_device(path: str) -> bool:
    return path in _HARMLESS_DEVICES or re.fullmatch(r"/dev/fd/\d+", path) is not None


def leads_outside(path: str, *, workspace: Path) -> bool:
    """Whether a path is outside the workspace after resolving links, `..` and `~`."""
    return not _is_harmless_device(path) and not _is_inside(_resolve_from(path, workspace), workspace)


def _make_outside_finding(path: str, write: bool) -> RiskFinding:
    if write:
        return RiskFinding(Risk.HIGH, f"writes outside the workspace: {_shorten(path)}")
    return RiskFinding(Risk.MEDIUM, f"reads outside the workspace: {_shorten(path)}")


def _resolve_from(path: str, base: Path) -> str:
    """Return the real path, with `~` expanded and links followed."""
    expanded = os.path.expanduser(path) if path.startswith("~") else path
    if expanded.startswith("~"):  # no such user; joined to `base`, the path would seem to be inside the workspace
        expanded = f"/{expanded}"
    return _resolve(os.path.join(base, expanded))


def _resolve(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # too long or not encodable, so no such file exists
        return os.path.normpath(path)


def _is_inside(real_path: str, workspace: Path) -> bool:
    if real_path.startswith(f"{workspace}/"):  # `real_path` has no links, so neither has its prefix
        return True
    # The workspace itself may be reached through a link, such as /tmp on macOS.
    root = _resolve(str(workspace))
    return real_path == root or real_path.startswith(root.rstrip("/") + "/")


def assess_pattern(pattern: str, *, workspace: Path, write: bool) -> Iterator[RiskFinding]:
    """Yield the findings about the entries of a folder that match a pattern. Links are followed.

    Lists the folder once. A folder with more than 1,000 entries is UNKNOWN.
    """
    folder, name_pattern = os.path.split(pattern)
    if re.search(r"[*?\[]", folder):  # matching would have to list a tree of any size
        yield RiskFinding(Risk.UNKNOWN, f"the matches of {_shorten(pattern)} are unknown")
        return
    try:
        names = sorted(os.listdir(_resolve_from(folder or ".", workspace)))
    except (OSError, ValueError):  # no folder, so no matches
        return
    if len(names) > _MAX_ENTRIES:
        yield RiskFinding(Risk.UNKNOWN, f"{_shorten(pattern)} may match too many files to check")
        return
    for name in names:
        if fnmatch(name, name_pattern):
            yield from assess_path(os.path.join(folder, name), workspace=workspace, write=write)


def _shorten(path: str) -> str:
    text = path if len(path) <= 80 else path[:77] + "…"
    return repr(text)
