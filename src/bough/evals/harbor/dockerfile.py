"""What a Dockerfile says, as far as bough has to know: base images, and whether the sandbox can do the same."""

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
"""Base images without anything that a task could need beyond a shell and Python."""

_SYSTEM: Final = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr")  # noqa: S108
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


@dataclass(frozen=True)
class DockerfileLine:
    """One instruction, continuation lines joined.

    Attributes:
        word: In capitals, for example `FROM`.
        rest: What follows it.
    """

    word: str
    rest: str

    def __str__(self) -> str:
        return f"{self.word} {self.rest}"


@dataclass(kw_only=True)
class SandboxPlan:
    """How a task is laid out without an image.

    Attributes:
        refused: The instruction that needs an image; None where the task fits.
        workdir: Where the workspace is mounted beside `/work`.
        files: What is copied into the workspace.
        folders: Made in the workspace, relative.
    """

    refused: str | None = None
    workdir: str = "/app"
    files: list[FileInput] = field(default_factory=list[FileInput])
    folders: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])


def parse_dockerfile(text: str) -> list[DockerfileLine]:
    """Return the instructions in order; comments and empty lines left out."""
    instructions: list[DockerfileLine] = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        word, _, rest = pending.strip().partition(" ")
        instructions.append(DockerfileLine(word.upper(), rest.strip()))
        pending = ""
    return instructions


def find_base_images(text: str) -> list[str]:
    """Return the images that a Dockerfile starts from, in order, its own stages and `scratch` left out."""
    defaults: dict[str, str] = {}
    stages: set[str] = set()
    images: list[str] = []
    for line in parse_dockerfile(text):
        if line.word == "ARG" and not images:
            name, _, value = line.rest.partition("=")
            defaults[name.strip()] = value.strip().strip("\"'")
        if line.word != "FROM":
            continue
        words = [word for word in line.rest.split() if not word.startswith("--")]
        image = fill_variables(words[0], defaults) if words else ""
        if image and image not in stages and image != "scratch":
            images.append(image)
        if len(words) == 3 and words[1].lower() == "as":
            stages.add(words[2])
    return list(dict.fromkeys(images))


def fill_variables(text: str, values: Mapping[str, str]) -> str:
    """Return a text with `$NAME`, `${NAME}` and `${NAME:-default}` replaced; what is not known becomes empty."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[3], "") or (match[2] or "")

    return _VARIABLE.sub(value, text)


def plan_sandbox(environment: Path, *, image: str | None, workdir: str | None, env: Mapping[str, str]) -> SandboxPlan:
    """Return how a task is laid out without an image, or which instruction needs one."""
    plan = SandboxPlan(env=dict(env), workdir=workdir or "/app")
    dockerfile = environment / "Dockerfile"
    if image is not None:
        plan.refused = f"docker_image {image}"
        return plan
    if not dockerfile.is_file():
        return plan
    for line in parse_dockerfile(dockerfile.read_text("utf-8", "replace")):
        if not _take(plan, line, environment):
            plan.refused = str(line)[:200]
            return plan
    if workdir is not None:
        plan.workdir = workdir
    return plan


def _take(plan: SandboxPlan, line: DockerfileLine, environment: Path) -> bool:
    """Take one instruction into the plan; whether that is possible."""
    match line.word:
        case "FROM":
            name = line.rest.split()[0] if line.rest else ""
            return name.rpartition("/")[2].partition(":")[0] in PLAIN_BASES
        case "WORKDIR":
            plan.workdir = line.rest.rstrip("/") or "/"
            return plan.workdir.startswith("/") and plan.workdir != "/" and not _is_below(plan.workdir, _SYSTEM)
        case "ENV":
            plan.env |= _variables(line.rest)
            return True
        case "ARG" | "LABEL":
            return True
        case "USER":
            return line.rest in ("root", "0", "0:0")
        case "RUN":
            return _take_run(plan, line.rest)
        case "COPY" | "ADD":
            return _take_copy(plan, line.rest, environment)
        case _:
            return False


def _take_run(plan: SandboxPlan, command: str) -> bool:
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if words[:2] != ["mkdir", "-p"] or any(word.startswith("-") or set(word) & set("*;&|<>$`") for word in words[2:]):
        return False
    for word in words[2:]:
        path = word if word.startswith("/") else f"{plan.workdir}/{word}"
        if not _is_below(path, (plan.workdir,)) or ".." in path.split("/"):
            return False
        plan.folders.append(path[len(plan.workdir) :].strip("/"))
    return True


def _take_copy(plan: SandboxPlan, rest: str, environment: Path) -> bool:
    if rest.startswith("["):
        try:
            words = [str(word) for word in cast("list[Any]", json.loads(rest))]
        except ValueError:
            return False
    else:
        words = rest.split()
    if len(words) < 2 or any(word.startswith("--") or "*" in word or "://" in word for word in words):
        return False
    *sources, target = words
    place = target if target.startswith("/") else f"{plan.workdir}/{target}"
    if ".." in place.split("/") or not _is_below(place.rstrip("/"), (plan.workdir,)):
        return False
    inside = "/".join(part for part in place[len(plan.workdir) :].split("/") if part not in ("", "."))
    for source in sources:
        path = environment / source
        if ".." in source.split("/") or not path.exists():
            return False
        plan.files += _place_files(path, inside, to_folder=target.endswith(("/", ".")) or len(sources) > 1)
    return True


def _place_files(source: Path, inside: str, *, to_folder: bool) -> Iterator[FileInput]:
    """Yield the files of a COPY: of a folder its content, of a file itself, below a target that is a folder."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                yield FileInput(source=path, target=f"{inside}/{path.relative_to(source)}".lstrip("/"))
    else:
        yield FileInput(
            source=source, target=f"{inside}/{source.name}".lstrip("/") if to_folder or not inside else inside
        )


def _variables(rest: str) -> dict[str, str]:
    try:
        words = shlex.split(rest)
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
