"""Images of tasks: built once per content, without network, within limits; errors name missing base images.

Source: ADK pull request 4575 (two retries with a prune between, intermediate containers removed, a prune every N
tasks, a summary).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import io
import json
import os
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from bough.errors import ExecutorError, InvalidInput, SandboxUnavailable
from bough.evals.harbor.dockerfile import find_base_images
from bough.evals.harbor.task import HarborTask
from bough.execution.container.engine import connect, engine_errors
from bough.types import JsonObject

BASE_IMAGE: Final = "bough-task-base"
"""Image of tasks that name none: a shell and Python."""

LABEL: Final = "bough"
MAX_CONTEXT_BYTES: Final = 512 << 20
RETRIES: Final = 2
_LOG_LINES: Final = 40
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """The image of a task, or the reason why it has none.

    Attributes:
        id: None if the build failed.
        how: `built`, `cached`, `named` (the task names an existing image) or `failed`.
        reason: Why it failed.
    """

    task: str
    id: str | None = None
    how: str
    seconds: float = 0.0
    retries: int = 0
    size_bytes: int = 0
    workdir: str = ""
    reason: str = ""


@dataclass
class BuildSummary:
    """The results of a run's builds."""

    images: list[BuiltImage] = field(default_factory=list[BuiltImage])

    def as_dict(self) -> JsonObject:
        """Return it as JSON: counts, seconds, retries, bytes, missing base images."""
        counts = {how: sum(image.how == how for image in self.images) for how in ("built", "cached", "named", "failed")}
        return {
            **counts,
            "seconds": round(sum(image.seconds for image in self.images), 3),
            "retries": sum(image.retries for image in self.images),
            "bytes": sum(image.size_bytes for image in self.images),
            "failures": [
                {"task": image.task, "reason": image.reason} for image in self.images if image.how == "failed"
            ],
        }


class ImageBuilder:
    """Builds images on an engine of this machine, one after another. All methods block.

    Args:
        rebuild: Build without the cache, even if the image exists.
        allow_network: Let builds use the engine's network and pull missing base images.
        prune_interval: Remove leftovers after this many builds; 0: only between retries.
        min_free_bytes: Stop a build when the engine's disk has less free space.
    """

    def __init__(
        self,
        docker_host: str | None = None,
        *,
        rebuild: bool = False,
        allow_network: bool = False,
        prune_interval: int = 0,
        min_free_bytes: int = 1 << 30,
    ) -> None:
        self._engine = connect(docker_host)
        self._rebuild, self._allow_network, self._prune_interval = rebuild, allow_network, prune_interval
        self._min_free_bytes = min_free_bytes
        self._root = str(self._engine.info().get("DockerRootDir", ""))

    def close(self) -> None:
        """Close the connection to the engine."""
        self._engine.close()

    def build_all(self, tasks: Sequence[HarborTask]) -> BuildSummary:
        """Return the image of each task; a failed build does not stop the others."""
        summary = BuildSummary()
        for number, task in enumerate(tasks, 1):
            summary.images.append(self.build(task))
            if self._prune_interval and number % self._prune_interval == 0:
                self.prune()
        return summary

    def build(self, task: HarborTask) -> BuiltImage:
        """Return the image of a task: found by its content, or built with at most two retries."""
        started = time.monotonic()
        try:
            if task.dockerfile is None:
                return self._describe(task, "named", task.image or BASE_IMAGE, started, 0)
            bases = self._resolve_bases(task.dockerfile.read_text("utf-8", "replace"))
            context = pack_context(task.environment)
            tag = f"bough-task:{self._key(context, bases)[:32]}"
            if not self._rebuild and self._find(tag) is not None:
                return self._describe(task, "cached", tag, started, 0)
            retries = self._build_with_retries(task, context, tag)
            return self._describe(task, "built", tag, started, retries)
        except _BuildFailed as error:
            return BuiltImage(
                task=task.name,
                how="failed",
                seconds=time.monotonic() - started,
                retries=error.retries,
                reason=str(error),
            )
        except (InvalidInput, SandboxUnavailable, ExecutorError) as error:
            return BuiltImage(task=task.name, how="failed", seconds=time.monotonic() - started, reason=error.message)

    def prune(self) -> None:
        """Remove untagged images of task builds; images without bough's label stay."""
        with suppress(*engine_errors()):
            self._engine.images.prune(filters={"dangling": True, "label": LABEL})

    def _describe(self, task: HarborTask, how: str, name: str, started: float, retries: int) -> BuiltImage:
        image = self._find(name)
        if image is None:
            raise SandboxUnavailable(f"base image {name} is not in the engine; docker load or docker import it")
        return BuiltImage(
            task=task.name,
            id=str(image.id),
            how=how,
            seconds=time.monotonic() - started,
            retries=retries,
            size_bytes=int(image.attrs.get("Size", 0)),
            workdir=str(image.attrs.get("Config", {}).get("WorkingDir") or ""),
        )

    def _find(self, name: str) -> Any | None:
        from docker import errors

        try:
            return self._engine.images.get(name)
        except errors.ImageNotFound:
            return None
        except (OSError, *engine_errors()) as error:
            raise ExecutorError(
                f"The engine does not answer: {error}", hint="Check that the container engine is running."
            ) from error

    def _resolve_bases(self, dockerfile: str) -> list[str]:
        """Return the ids of the base images.

        Raises:
            SandboxUnavailable: A base image is missing and could not be pulled.
        """
        bases: list[str] = []
        for name in find_base_images(dockerfile):
            image = self._find(name)
            if image is None and self._allow_network:
                with suppress(*engine_errors()):
                    image = self._engine.images.pull(name)
            if image is None:
                raise SandboxUnavailable(f"base image {name} is not in the engine; docker load or docker import it")
            bases.append(str(image.id))
        return bases

    def _key(self, context: bytes, bases: Sequence[str]) -> str:
        # The base images and the network are part of the key, since both can change what a build produces.
        return sha256(json.dumps([sha256(context).hexdigest(), *bases, self._allow_network]).encode()).hexdigest()

    def _build_with_retries(self, task: HarborTask, context: bytes, tag: str) -> int:
        for attempt in range(RETRIES + 1):
            try:
                self._build_once(task, context, tag)
            except _BuildFailed as error:
                if error.is_final or attempt == RETRIES:
                    error.retries = attempt
                    raise
                self.prune()
            else:
                return attempt
        raise AssertionError("the loop returns or raises")

    def _build_once(self, task: HarborTask, context: bytes, tag: str) -> None:
        api = self._engine.api
        params = {
            "t": tag,
            "rm": True,
            "forcerm": True,
            "nocache": self._rebuild,
            "pull": False,
            "networkmode": "default" if self._allow_network else "none",
            "memory": task.memory_bytes,
            # Equal to `memory`, so that the build cannot use swap on top.
            "memswap": task.memory_bytes,
            "labels": json.dumps({LABEL: "task-image"}),
        }
        with _BuildWatch(self._root, self._min_free_bytes, task.build_timeout_seconds) as watch:
            log: list[str] = []
            try:
                # Not the SDK's `build`, which hides the connection: closing the connection is the only way to stop a
                # build, and a silent one would run for ever.
                response = api._post(
                    api._url("/build"),
                    data=context,
                    params=params,
                    headers={"Content-Type": "application/tar"},
                    stream=True,
                    timeout=None,
                )
                with closing(response):
                    api._raise_for_status(response)
                    watch.begin(api._get_raw_response_socket(response))
                    for line in api._stream_helper(response, decode=True):
                        _append_log_line(line, log)
            except (OSError, ValueError, *engine_errors()) as error:
                raise _BuildFailed(watch.reason or str(error), log, is_final=bool(watch.reason)) from error
            if watch.reason:
                raise _BuildFailed(watch.reason, log, is_final=True)
        if self._find(tag) is None:
            raise _BuildFailed("the build ended without an image", log)


def _append_log_line(line: JsonObject, log: list[str]) -> None:
    """Append the output of a build step to the log, which keeps the last lines.

    Raises:
        ValueError: The build reported an error.
    """
    if "error" in line:
        raise ValueError(str(line["error"]))
    log += str(line.get("stream", "")).splitlines()
    del log[:-_LOG_LINES]


class _BuildFailed(Exception):
    """A failed build.

    Attributes:
        is_final: Whether a retry cannot help.
    """

    def __init__(self, reason: str, log: Sequence[str], *, is_final: bool = False) -> None:
        super().__init__("\n".join([f"the build failed: {reason}", *log]))
        self.is_final = is_final
        self.retries = 0


class _BuildWatch:
    """Closes the connection of a build that exceeds its time or fills the disk."""

    def __init__(self, root: str, min_free_bytes: int, timeout_seconds: float) -> None:
        self.reason = ""
        self._root, self._min_free_bytes, self._timeout_seconds = root, min_free_bytes, timeout_seconds
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _BuildWatch:
        return self

    def begin(self, stream: Any) -> None:
        """Start watching; `stream` is the response that the build is read from."""
        connection: socket.socket = getattr(stream, "_sock", stream)
        self._thread = threading.Thread(target=self._watch, args=(connection,), daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while not self._over.wait(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self.reason = f"it took longer than {self._timeout_seconds:g} s"
            elif os.path.isdir(self._root) and shutil.disk_usage(self._root).free < self._min_free_bytes:
                self.reason = "the engine's disk is nearly full"
            if self.reason:
                with suppress(OSError):
                    # shutdown, not close: it wakes the thread that is blocked reading this socket.
                    connection.shutdown(socket.SHUT_RDWR)
                return


def pack_context(folder: Path) -> bytes:
    """Return a build's context as an archive, deterministic; links that point outside are omitted.

    Raises:
        InvalidInput: The context is too large.
    """
    buffer = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            # A link out of the folder would put files of this machine into the image.
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                continue
            if not (path.is_dir() or path.is_file() or path.is_symlink()):
                continue
            entry = tar.gettarinfo(path, arcname=path.relative_to(folder).as_posix())
            # Owners and times are cleared: equal content must give equal bytes, which the cache key hashes.
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            total += entry.size
            if total > MAX_CONTEXT_BYTES:
                raise InvalidInput(f"{folder} is larger than {MAX_CONTEXT_BYTES >> 20} MB", hint="Make it smaller.")
            if entry.isreg():
                with open(path, "rb") as source:
                    tar.addfile(entry, source)
            else:
                tar.addfile(entry)
    return buffer.getvalue()
