"""Reads Harbor tasks from their folders; the faults of a task do not affect other tasks.

Source: Harbor's `task.toml`, schemas 1.0 to 1.4; SkillsBench's use of it (ADK pull request 4575).
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

from bough.errors import InvalidInput, NotFound
from bough.evals.document import Fault, FaultList
from bough.types import JsonObject

MAX_DEPTH: Final = 6
"""Maximum depth below the folder at which tasks are searched."""

MAX_SECONDS: Final = 7 * 24 * 3600.0

_CANARY = re.compile(r"\A\s*(?:<!--[^\n]*canary[^\n]*-->|#[^\n]*canary[^\n]*)\n?", re.IGNORECASE)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*\Z", re.IGNORECASE)
_UNSUPPORTED: Mapping[str, tuple[str, ...]] = {
    "": ("steps",),
    "environment": ("gpus", "gpu_types", "tpu", "mcp_servers", "healthcheck"),
    "verifier": ("collect",),
}


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    """One Harbor task.

    Attributes:
        name: The folder's name.
        agent_user: User in the container; None uses the image's user.
        verifier_user: User of the test script; root by default.
        workdir: Working folder; None uses the image's.
        image: An image to use instead of building one.
        wants_network: Whether the task requests network access, which only the caller can grant.
        skill_roots: Folders with skills for the agent.
    """

    name: str
    folder: Path
    instruction: str
    agent_timeout_seconds: float = 600.0
    agent_user: str | None = None
    verifier_timeout_seconds: float = 600.0
    verifier_user: str = "0:0"
    verifier_env: Mapping[str, str] = field(default_factory=dict[str, str])
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    build_timeout_seconds: float = 600.0
    cpus: float = 1.0
    memory_bytes: int = 2048 << 20
    storage_bytes: int = 10240 << 20
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    image: str | None = None
    wants_network: bool = False
    skill_roots: tuple[Path, ...] = ()

    @property
    def environment(self) -> Path:
        """The build context of the image."""
        return self.folder / "environment"

    @property
    def dockerfile(self) -> Path | None:
        """The Dockerfile; None if missing."""
        path = self.environment / "Dockerfile"
        return path if path.is_file() else None

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of the paths, modes and contents of all files in the folder. O(bytes)."""
        digest = sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                digest.update(f"{path.relative_to(self.folder)}\0{path.stat().st_mode & 0o777}\0".encode())
                digest.update(sha256(path.read_bytes()).digest())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class TaskListing:
    """The valid tasks of a folder, sorted by name, and the faults found while reading all of them."""

    tasks: tuple[HarborTask, ...]
    faults: tuple[Fault, ...] = ()


def list_tasks(folder: Path, pattern: str = "*") -> TaskListing:
    """Return the task in a folder, or the tasks below the folder; skips hidden folders, does not follow links.

    Raises:
        NotFound: The folder does not exist.
        InvalidInput: No task matches the pattern.
    """
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist", hint="give the folder of a task, or a folder that contains tasks")
    tasks: dict[str, HarborTask] = {}
    faults: list[Fault] = []
    task_folders = sorted(_find_task_folders(folder.absolute(), 0))
    matching_folders = [task_folder for task_folder in task_folders if fnmatchcase(task_folder.name, pattern)]
    if not matching_folders:
        raise InvalidInput(
            f"{folder} has no task that matches {pattern!r}", hint="the folder of a task contains a task.toml"
        )
    for task_folder in matching_folders:
        task, task_faults = read_task(task_folder)
        faults += task_faults
        if task is not None and task.name in tasks:
            message = f"{tasks[task.name].folder} has the same name"
            faults.append(Fault("duplicate-id", str(task_folder), task.name, "", message))
        elif task is not None:
            tasks[task.name] = task
    return TaskListing(tasks=tuple(tasks[name] for name in sorted(tasks)), faults=tuple(faults))


def _find_task_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield `folder` if it is a task, else the tasks below it; `depth` is how far `folder` is below the start."""
    if (folder / "task.toml").is_file() or (folder / "task.md").is_file():
        # Not searched further, because everything below belongs to this task.
        yield folder
        return
    if depth == MAX_DEPTH:
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _find_task_folders(Path(entry.path), depth + 1)


def read_task(folder: Path) -> tuple[HarborTask | None, list[Fault]]:
    """Return the task of a folder; None and its faults if it is invalid."""
    faults = FaultList(folder / "task.toml")
    if not (folder / "task.toml").is_file():
        faults.add("unsupported", "task.md is not supported; use a release of the tasks that has task.toml",
                   case=folder.name)  # fmt: skip
        return None, faults.items
    try:
        data = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    except (OSError, ValueError) as error:
        faults.add("shape", f"task.toml is not TOML: {error}", case=folder.name)
        return None, faults.items
    reader = _TomlReader(folder, data, faults)
    task = reader.read()
    return (None if faults.has_error(0) else task), faults.items


class _TomlReader:
    """Reads the fields of one `task.toml`."""

    def __init__(self, folder: Path, data: JsonObject, faults: FaultList) -> None:
        self.folder, self.faults = folder, faults
        self.data: JsonObject = data

    def read(self) -> HarborTask:
        """Return the task; invalid fields are added to the faults and replaced by defaults."""
        self._refuse_unsupported()
        return HarborTask(
            name=self.folder.name,
            folder=self.folder,
            instruction=self._read_instruction(),
            agent_timeout_seconds=self._read_number("agent", "timeout_sec", 600.0),
            agent_user=self._read_text("agent", "user"),
            verifier_timeout_seconds=self._read_number("verifier", "timeout_sec", 600.0),
            verifier_user=self._read_text("verifier", "user") or "0:0",
            verifier_env=self._read_texts("verifier", "env"),
            solution_env=self._read_texts("solution", "env"),
            build_timeout_seconds=self._read_number("environment", "build_timeout_sec", 600.0),
            cpus=self._read_number("environment", "cpus", 1.0),
            memory_bytes=self._read_size_bytes("memory_mb", "memory", 2048),
            storage_bytes=self._read_size_bytes("storage_mb", "storage", 10240),
            env=self._read_texts("environment", "env"),
            workdir=self._read_workdir(),
            image=self._read_text("environment", "docker_image"),
            wants_network=self._requests_network(),
            skill_roots=self._find_skill_roots(),
        )

    def _get_table(self, name: str) -> JsonObject:
        """Return a table of the file; empty if missing or if it is not a table."""
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            self._add_fault("type", f"[{name}] is not a table", name)
            self.data = {**self.data, name: {}}  # the fault is reported only once
            return {}
        return cast("JsonObject", value)

    def _add_fault(self, code: Any, message: str, field: str) -> None:
        self.faults.add(code, message, case=self.folder.name, field=field)

    def _refuse_unsupported(self) -> None:
        """Add a fault for each unsupported field or file, and for a missing test script."""
        for table, names in _UNSUPPORTED.items():
            section = self.data if not table else self._get_table(table)
            for name in names:
                if section.get(name):
                    self._add_fault("unsupported", f"{name} is not supported", f"{table}.{name}".lstrip("."))
        if self._get_table("environment").get("os", "linux") != "linux":
            self._add_fault("unsupported", "only Linux images are supported", "environment.os")
        if self._get_table("verifier").get("environment_mode", "shared") == "separate":
            self._add_fault(
                "unsupported", "a verifier with a separate image is not supported", "verifier.environment_mode"
            )
        for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
            if (self.folder / "environment" / name).exists():
                self._add_fault("unsupported", f"{name} is not supported: a task has one container", "environment")
        if not (self.folder / "tests" / "test.sh").is_file():
            self._add_fault("file-missing", "tests/test.sh does not exist", "tests")

    def _read_instruction(self) -> str:
        """Return the instruction without its canary lines; empty after adding a fault."""
        try:
            text = (self.folder / "instruction.md").read_text("utf-8")
        except FileNotFoundError:
            self._add_fault("no-prompt", "instruction.md does not exist", "instruction.md")
            return ""
        except (OSError, ValueError) as error:
            self._add_fault("not-utf8", f"instruction.md cannot be read: {error}", "instruction.md")
            return ""
        while match := _CANARY.match(text):
            text = text[match.end() :]
        if not text.strip():
            self._add_fault("no-prompt", "instruction.md is empty", "instruction.md")
        return text.strip()

    def _read_number(self, table: str, name: str, default: float) -> float:
        value: object = self._get_table(table).get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
            self._add_fault("type", f"{name} is {value!r}, not a number above 0", f"{table}.{name}")
            return default
        return float(value)

    def _read_size_bytes(self, megabytes_field: str, size_field: str, default_mb: int) -> int:
        """Return a size of the environment in bytes.

        Args:
            megabytes_field: Name of the field with a number of megabytes.
            size_field: Name of the older field with a text such as `2G`, which takes precedence.
        """
        table = self._get_table("environment")
        if size_field in table:
            match = _SIZE.match(str(table[size_field]))
            if match is None or float(match[1]) <= 0:
                self._add_fault(
                    "type", f'{size_field} is {table[size_field]!r}, not a size like "2G"', f"environment.{size_field}"
                )
                return default_mb << 20
            exponent = " KMGT".index(match[2].upper() or " ")
            return int(float(match[1]) * 1024**exponent)
        value: object = table.get(megabytes_field, default_mb)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 1:
            self._add_fault(
                "type", f"{megabytes_field} is {value!r}, not a number above 0", f"environment.{megabytes_field}"
            )
            return default_mb << 20
        return int(value) << 20

    def _read_text(self, table: str, name: str) -> str | None:
        """Return a string or an integer as a string; None if it is missing, empty or of another type."""
        value: object = self._get_table(table).get(name)
        if value is None or value == "":
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            self._add_fault("type", f"{name} is {value!r}, not a string", f"{table}.{name}")
            return None
        return value

    def _read_texts(self, table: str, name: str) -> dict[str, str]:
        """Return a table of environment variables, without those whose name or value is invalid."""
        value: object = self._get_table(table).get(name, {})
        if not isinstance(value, dict):
            self._add_fault("type", f"{name} is not a table of strings", f"{table}.{name}")
            return {}
        texts: dict[str, str] = {}
        for key, text in cast("JsonObject", value).items():
            if not isinstance(text, str) or not _VARIABLE_NAME.match(key) or "\0" in text:
                self._add_fault("type", f"{key!r} is not an environment variable with a string", f"{table}.{name}")
            else:
                texts[key] = text
        return texts

    def _read_workdir(self) -> str | None:
        value = self._read_text("environment", "workdir")
        if value is not None and not value.startswith("/"):
            self._add_fault("type", f"workdir {value!r} is not an absolute path", "environment.workdir")
            return None
        return value

    def _requests_network(self) -> bool:
        """Return whether the task requests network access; `network_mode` overrides `allow_internet`."""
        table = self._get_table("environment")
        mode = table.get("network_mode")
        if mode is None:
            allowed = table.get("allow_internet", True)  # Harbor's default: public unless the task sets otherwise
            if not isinstance(allowed, bool):
                self._add_fault(
                    "type", f"allow_internet is {allowed!r}, not true or false", "environment.allow_internet"
                )
            return allowed is True
        if mode not in ("no-network", "public", "allowlist"):
            self._add_fault("type", f"network_mode is {mode!r}", "environment.network_mode")
        if mode == "allowlist":
            self._add_fault("unsupported", "an allowlist of hosts is not supported", "environment.network_mode")
        return mode == "public"

    def _find_skill_roots(self) -> tuple[Path, ...]:
        skills_dir = self._read_text("environment", "skills_dir")
        candidates = [self.folder / "environment" / "skills", self.folder / "skills"]
        if skills_dir is not None and not skills_dir.startswith("/"):
            candidates.append(self.folder / "environment" / skills_dir)
        return tuple(dict.fromkeys(folder for folder in candidates if folder.is_dir()))
