"""Reads Dockerfiles: base images, and whether the local sandbox can provide the same environment."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from bough.evals.case import FileInput

PLAIN_BASES: Final = frozenset({"scratch", "debian", "ubuntu", "python", "alpine", "busybox", "bough-task-base"})
"""Base images that provide no more than a shell and Python."""

_SYSTEM_FOLDERS: Final = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",  # noqa: S108
    "/usr",
)
_SHELL_CHARACTERS: Final = frozenset("*;&|<>$`")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


@dataclass(frozen=True)
class DockerfileLine:
    """One instruction of a Dockerfile, with its continuation lines joined.

    Attributes:
        keyword: In capitals, for example `FROM`.
        arguments: The text after the keyword.
    """

    keyword: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.keyword} {self.arguments}"


@dataclass(kw_only=True)
class SandboxPlan:
    """The environment of a task in the sandbox, without an image.

    Attributes:
        refused_instruction: The instruction that needs an image; None if the sandbox can run the task.
        workdir: Second mount point of the workspace, in addition to `/work`.
        files: Files to copy into the workspace.
        folders: Folders to create, relative to the workspace.
    """

    refused_instruction: str | None = None
    workdir: str = "/app"
    files: list[FileInput] = field(default_factory=list[FileInput])
    folders: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])


def parse_dockerfile(text: str) -> list[DockerfileLine]:
    """Return the instructions of a Dockerfile in order, without comments and empty lines."""
    instructions: list[DockerfileLine] = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        keyword, _, arguments = pending.strip().partition(" ")
        instructions.append(DockerfileLine(keyword.upper(), arguments.strip()))
        pending = ""
    return instructions


def find_base_images(text: str) -> list[str]:
    """Return the images that the `FROM` lines name, in order, without build stages and `scratch`."""
    defaults: dict[str, str] = {}
    stages: set[str] = set()
    images: list[str] = []
    for line in parse_dockerfile(text):
        if line.keyword == "ARG" and not images:
            name, _, value = line.arguments.partition("=")
            defaults[name.strip()] = value.strip().strip("\"'")
        if line.keyword != "FROM":
            continue
        words = [word for word in line.arguments.split() if not word.startswith("--")]
        image = fill_variables(words[0], defaults) if words else ""
        if image and image not in stages and image != "scratch":
            images.append(image)
        if len(words) == 3 and words[1].lower() == "as":
            stages.add(words[2])
    return list(dict.fromkeys(images))


def fill_variables(text: str, values: Mapping[str, str]) -> str:
    """Return a text with `$NAME`, `${NAME}` and `${NAME:-default}` replaced; unknown names become empty."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[3], "") or (match[2] or "")

    return _VARIABLE.sub(value, text)


def plan_sandbox(environment: Path, *, image: str | None, workdir: str | None, env: Mapping[str, str]) -> SandboxPlan:
    """Return the sandbox environment of a task, or a plan that names the instruction that needs an image."""
    plan = SandboxPlan(env=dict(env), workdir=workdir or "/app")
    dockerfile = environment / "Dockerfile"
    if image is not None:
        plan.refused_instruction = f"docker_image {image}"
        return plan
    if not dockerfile.is_file():
        return plan
    for line in parse_dockerfile(dockerfile.read_text("utf-8", "replace")):
        if not _add_line(plan, line, environment):
            plan.refused_instruction = str(line)[:200]
            return plan
    if workdir is not None:
        plan.workdir = workdir
    return plan


def _add_line(plan: SandboxPlan, line: DockerfileLine, environment: Path) -> bool:
    """Add one instruction to the plan; return False if the instruction needs an image."""
    match line.keyword:
        case "FROM":
            name = line.arguments.split()[0] if line.arguments else ""
            return name.rpartition("/")[2].partition(":")[0] in PLAIN_BASES
        case "WORKDIR":
            plan.workdir = line.arguments.rstrip("/") or "/"
            return plan.workdir.startswith("/") and plan.workdir != "/" and not _is_below(plan.workdir, _SYSTEM_FOLDERS)
        case "ENV":
            plan.env |= _parse_env(line.arguments)
            return True
        case "ARG" | "LABEL":
            return True
        case "USER":
            return line.arguments in ("root", "0", "0:0")
        case "RUN":
            return _add_run(plan, line.arguments)
        case "COPY" | "ADD":
            return _add_copy(plan, line.arguments, environment)
        case _:
            return False


def _add_run(plan: SandboxPlan, command: str) -> bool:
    """Add the folders of a `RUN mkdir -p` below the working folder; return False for any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    # Shell syntax is refused, because the plan creates the folders without a shell.
    if words[:2] != ["mkdir", "-p"] or any(word.startswith("-") or _SHELL_CHARACTERS & set(word) for word in words[2:]):
        return False
    for word in words[2:]:
        path = word if word.startswith("/") else f"{plan.workdir}/{word}"
        if not _is_below(path, (plan.workdir,)) or ".." in path.split("/"):
            return False
        plan.folders.append(path[len(plan.workdir) :].strip("/"))
    return True


def _add_copy(plan: SandboxPlan, arguments: str, environment: Path) -> bool:
    """Plan the files that a COPY or ADD puts into the working folder; return False if it needs an image."""
    if arguments.startswith("["):
        try:
            words = [str(word) for word in cast("list[Any]", json.loads(arguments))]
        except ValueError:
            return False
    else:
        words = arguments.split()
    if len(words) < 2 or any(word.startswith("--") or "*" in word or "://" in word for word in words):
        return False
    *sources, target = words
    path_in_image = target if target.startswith("/") else f"{plan.workdir}/{target}"
    if ".." in path_in_image.split("/") or not _is_below(path_in_image.rstrip("/"), (plan.workdir,)):
        return False
    workspace_path = "/".join(part for part in path_in_image[len(plan.workdir) :].split("/") if part not in ("", "."))
    for source in sources:
        path = environment / source
        # A source outside the build context could be any file on this machine.
        if ".." in source.split("/") or not path.exists():
            return False
        plan.files += _list_copied_files(
            path, workspace_path, to_folder=target.endswith(("/", ".")) or len(sources) > 1
        )
    return True


def _list_copied_files(source: Path, target: str, *, to_folder: bool) -> Iterator[FileInput]:
    """Yield a COPY's files with their paths in the workspace: the content of a folder, or the file itself.

    Args:
        target: Path in the workspace; empty for the workspace itself.
        to_folder: Whether `target` is a folder that receives the file.
    """
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                yield FileInput(source=path, target=f"{target}/{path.relative_to(source)}".lstrip("/"))
    else:
        is_folder = to_folder or not target
        yield FileInput(source=source, target=f"{target}/{source.name}".lstrip("/") if is_folder else target)


def _parse_env(arguments: str) -> dict[str, str]:
    """Return the variables of an ENV instruction, written as `NAME=value …` or as `NAME value`."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
