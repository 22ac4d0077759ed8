"""Starting git on the host: the one place that does, so that a repository cannot make it start anything else.

A repository is data that somebody else may have written, a script in a workspace for instance. Its configuration can
name programs that git runs by the way: hooks, filters, file system monitors, credential helpers. Here git gets an
environment from scratch, is told where the repository is instead of looking for it, and every setting that names a
program is overridden, whichever file it comes from. The settings are passed by variables, since those reach git's own
children, and since the name of a setting may hold any character.

Source: git's documentation of `GIT_CONFIG_COUNT`, `GIT_ALLOW_PROTOCOL` and `safe.directory`; gitattributes(5).
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bough.errors import InvalidInput, Unavailable

_SECONDS: Final = 120.0
_MAX_GITFILE_BYTES: Final = 8192
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_SETTINGS: Final[Mapping[str, str]] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.untrackedCache": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    # Folders are lent to the uid of runs, and given back; git would refuse what does not belong to its caller.
    "safe.directory": "*",
}
_NETWORK_VARIABLES: Final = (
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSH_AUTH_SOCK"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"),
)
_NAMES_A_PROGRAM: Final = re.compile(
    r"""(filter|hook|alias|pager|gpg|browser|man|mergetool|difftool|guitool|sendemail)\..*
    |diff\.external|diff\..*\.(command|textconv)|merge\..*\.driver|tar\..*\.command|trailer\..*\.(command|cmd)
    |core\.(editor|pager|askpass|alternaterefscommand|gitproxy)|sequence\.editor|interactive\.difffilter
    |credential\.(.*\.)?helper|uploadpack\.packobjectshook|remote\..*\.(uploadpack|receivepack|vcs)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Settings that can start a program. `include` is not among them: what it brings is listed like all else."""


@dataclass(frozen=True)
class Repository:
    """Where a repository is: its own folder, and the folder with the files."""

    git_dir: Path
    work_tree: Path


@dataclass(frozen=True)
class GitOutput:
    """What git said, and its exit code."""

    code: int
    stdout: str
    stderr: str


def find_repository(folder: Path) -> Repository | None:
    """Return the repository that `folder` is in; None: in none.

    Raises:
        InvalidInput: What is called `.git` is a link, or leads to a repository that does not know of it.
    """
    for place in (Path(os.path.realpath(folder)), *Path(os.path.realpath(folder)).parents):
        dot_git = place / ".git"
        try:
            mode = dot_git.lstat().st_mode
        except OSError:
            continue
        git_dir = _follow(dot_git) if stat.S_ISREG(mode) else None
        if stat.S_ISDIR(mode):
            git_dir = dot_git
        if git_dir is None or not _is_own(git_dir, dot_git):
            raise InvalidInput(
                f"{dot_git} leads to a repository that does not belong to this folder",
                hint="remove it, or repair it with `git worktree repair`",
            )
        return Repository(git_dir, place)
    return None


def run(
    folder: Path,
    *arguments: str,
    repository: Repository | None = None,
    env: Mapping[str, str] | None = None,
    protocols: Sequence[str] = (),
    stdin: str = "",
    timeout_seconds: float = _SECONDS,
) -> GitOutput:
    """Run git in `folder` so that nothing of the repository is executed, and return what it said. Blocks.

    Args:
        repository: Where the repository is; None: the one that `folder` is in.
        env: Variables beside the fixed ones, for example `GIT_INDEX_FILE`.
        protocols: What may be used to reach other repositories, for example `https`; none: nothing is reached.

    Raises:
        InvalidInput: The folder is in no repository, or in one that `find_repository` refuses.
        Unavailable: There is no git, or it took too long.
    """
    repo = find_repository(folder) if repository is None else repository
    if repo is None:
        raise InvalidInput(f"{folder} is not in a git repository", hint="run `git init` in it")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        **_ENVIRONMENT,
        "GIT_DIR": str(repo.git_dir),
        "GIT_WORK_TREE": str(repo.work_tree),
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        **(env or {}),
    }
    settings = dict(_SETTINGS)
    if protocols:
        environment |= {name: os.environ[name] for name in _NETWORK_VARIABLES if name in os.environ}
    listed = _start(folder, ("config", "--list", "--includes", "--name-only", "-z"), environment, settings)
    for name in listed.stdout.split("\0"):
        settings |= _override(name)
    settings["core.sshCommand"] = "ssh" if "ssh" in protocols else "false"
    return _start(folder, arguments, environment, settings, stdin=stdin, timeout_seconds=timeout_seconds)


def _override(name: str) -> dict[str, str]:
    """Return the setting that takes away what the setting `name` would start; nothing where it starts nothing."""
    if not _NAMES_A_PROGRAM.fullmatch(name):
        return {}
    return {name: "false" if name.lower().endswith(".required") else ""}


def _start(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    stdin: str = "",
    timeout_seconds: float = _SECONDS,
) -> GitOutput:
    numbered: dict[str, str] = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program
            ["git", "--no-optional-locks", "--literal-pathspecs", *arguments],  # noqa: S607 - git is found as by people
            cwd=folder,
            env={**environment, **numbered},
            input=stdin.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise Unavailable("git is not installed", hint="apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"git timed out after {timeout_seconds:.0f} s", hint="try again") from error
    # Without the translation of line ends that text streams do: what a blob holds is got back byte for byte.
    stdout, stderr = (stream.decode("utf-8", "surrogateescape") for stream in (done.stdout, done.stderr))
    return GitOutput(done.returncode, stdout, stderr)


def _follow(dot_git: Path) -> Path | None:
    """Return the folder that a `.git` file names."""
    with dot_git.open("rb") as source:
        text = source.read(_MAX_GITFILE_BYTES)
    target = text.removeprefix(b"gitdir:").strip()
    if target == text.strip() or not target:
        return None
    return Path(os.path.realpath(dot_git.parent / os.fsdecode(target)))


def _is_own(git_dir: Path, dot_git: Path) -> bool:
    """Whether a repository's folder belongs to the place that leads to it, so that no other repository is touched."""
    common = _read_path(git_dir / "commondir", git_dir)
    if common is not None and Path(os.path.realpath(git_dir)).parent.parent != common:
        return False
    if git_dir == dot_git:
        return common is None
    if common is not None:
        return _read_path(git_dir / "gitdir", git_dir) == Path(os.path.realpath(dot_git))
    # A submodule: its repository lies in that of the folder it is in.
    return any(git_dir.is_relative_to(above / ".git" / "modules") for above in dot_git.parent.parents)


def _read_path(file: Path, base: Path) -> Path | None:
    try:
        with file.open("rb") as source:
            return Path(os.path.realpath(base / os.fsdecode(source.read(_MAX_GITFILE_BYTES).strip())))
    except OSError:
        return None
