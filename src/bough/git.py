"""Run git on the host so that a repository cannot make git start other programs. No other module starts git.

A repository may have been written by someone else, for example by a script in a workspace. Its configuration can name
programs that git starts: hooks, filters, file system monitors, credential helpers. So git gets a new environment and
the explicit location of the repository, and every setting that names a program is overridden, whichever file sets it.
Settings are passed as environment variables, because git's child processes inherit these, and because the name of a
setting may contain any character.

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
    # During a run, its folders belong to another uid; git would refuse a repository that another user owns.
    "safe.directory": "*",
}
_NETWORK_VARIABLES: Final = (
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSH_AUTH_SOCK"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"),
)
_PROGRAM_SETTINGS: Final = re.compile(
    r"""(filter|hook|alias|pager|gpg|browser|man|mergetool|difftool|guitool|sendemail)\..*
    |diff\.external|diff\..*\.(command|textconv)|merge\..*\.driver|tar\..*\.command|trailer\..*\.(command|cmd)
    |core\.(editor|pager|askpass|alternaterefscommand|gitproxy)|sequence\.editor|interactive\.difffilter
    |credential\.(.*\.)?helper|uploadpack\.packobjectshook|remote\..*\.(uploadpack|receivepack|vcs)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Names of settings that can start a program. `include` is not needed, because git lists included settings too."""


@dataclass(frozen=True)
class Repository:
    """The location of a repository.

    Attributes:
        git_dir: The folder of the repository itself, usually `.git`.
        work_tree: The folder with the checked-out files.
    """

    git_dir: Path
    work_tree: Path


@dataclass(frozen=True)
class GitOutput:
    """The exit code and the output of git."""

    code: int
    stdout: str
    stderr: str


def find_repository(folder: Path) -> Repository | None:
    """Return the repository that contains `folder`, or None.

    Raises:
        InvalidInput: The entry `.git` is a link, or leads to a repository that belongs to another folder.
    """
    real_folder = Path(os.path.realpath(folder))
    for work_tree in (real_folder, *real_folder.parents):
        dot_git = work_tree / ".git"
        try:
            mode = dot_git.lstat().st_mode
        except OSError:
            continue
        git_dir = None
        if stat.S_ISDIR(mode):
            git_dir = dot_git
        elif stat.S_ISREG(mode):
            git_dir = _read_gitfile(dot_git)
        if git_dir is None or not _is_own(git_dir, dot_git):
            raise InvalidInput(
                f"{dot_git} leads to a repository that does not belong to this folder",
                hint="remove it, or repair it with `git worktree repair`",
            )
        return Repository(git_dir, work_tree)
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
    """Run git in `folder` without starting any program that the repository names; return its output. Blocks.

    Args:
        repository: The repository; None for the one that contains `folder`.
        env: Variables in addition to the fixed ones, for example `GIT_INDEX_FILE`.
        protocols: Protocols allowed for other repositories, for example `https`; empty allows none.

    Raises:
        InvalidInput: The folder is in no repository, or in one that `find_repository` rejects.
        Unavailable: git is not installed, or it timed out.
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
    config_output = _start(folder, ("config", "--list", "--includes", "--name-only", "-z"), environment, settings)
    for name in config_output.stdout.split("\0"):
        settings |= _override(name)
    settings["core.sshCommand"] = "ssh" if "ssh" in protocols else "false"
    return _start(folder, arguments, environment, settings, stdin=stdin, timeout_seconds=timeout_seconds)


def _override(name: str) -> dict[str, str]:
    """Return an override for a setting that can start a program; empty for any other setting."""
    if not _PROGRAM_SETTINGS.fullmatch(name):
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
    """Start git with the given environment and settings, and return its output.

    Raises:
        Unavailable: git is not installed, or it timed out.
    """
    numbered: dict[str, str] = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    try:
        process = subprocess.run(  # noqa: S603 - a fixed program
            ["git", "--no-optional-locks", "--literal-pathspecs", *arguments],  # noqa: S607 - PATH selects the user's git
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
    # Decoded here, because text mode would convert line endings and so change the content of a blob.
    stdout, stderr = (stream.decode("utf-8", "surrogateescape") for stream in (process.stdout, process.stderr))
    return GitOutput(process.returncode, stdout, stderr)


def _read_gitfile(dot_git: Path) -> Path | None:
    """Return the folder that a `.git` file names; None if it names none."""
    with dot_git.open("rb") as source:
        text = source.read(_MAX_GITFILE_BYTES)
    target = text.removeprefix(b"gitdir:").strip()
    if target == text.strip() or not target:
        return None
    return Path(os.path.realpath(dot_git.parent / os.fsdecode(target)))


def _is_own(git_dir: Path, dot_git: Path) -> bool:
    """Return whether a repository belongs to the folder of this `.git`. If not, git would change another repository."""
    # Only a worktree has a `commondir`, the repository that it shares.
    common_dir = _read_path(git_dir / "commondir", git_dir)
    if common_dir is not None and Path(os.path.realpath(git_dir)).parent.parent != common_dir:
        return False
    if git_dir == dot_git:
        return common_dir is None
    if common_dir is not None:
        return _read_path(git_dir / "gitdir", git_dir) == Path(os.path.realpath(dot_git))
    # The repository of a submodule is inside the repository of an outer folder.
    return any(git_dir.is_relative_to(parent / ".git" / "modules") for parent in dot_git.parent.parents)


def _read_path(file: Path, base: Path) -> Path | None:
    """Return the path that a file contains, relative to `base`; None if the file cannot be read."""
    try:
        with file.open("rb") as source:
            return Path(os.path.realpath(base / os.fsdecode(source.read(_MAX_GITFILE_BYTES).strip())))
    except OSError:
        return None
