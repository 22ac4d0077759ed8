"""Builds the images of tasks, once per content: with limits of time, memory and disk, by default without network.

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
"""Image of tasks that name no image; has a shell and Python."""

LABEL: Final = "bough"
MAX_CONTEXT_BYTES: Final = 512 << 20
RETRIES: Final = 2
_LOG_LINES: Final = 40
_CHECK_INTERVAL_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """The image of a task, or the reason why it has none.

    Attributes:
        id: Id of the image; None if the build failed.
        status: `built`, `cached`, `named` (the task names an existing image) or `failed`.
        reason: Why the build failed, followed by the last lines of its log.
    """

    task: str
    id: str | None = None
    status: str
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
        """Return the totals as JSON: counts by status, seconds, retries, bytes, and the failed builds."""
        statuses = ("built", "cached", "named", "failed")
        counts = {status: sum(image.status == status for image in self.images) for status in statuses}
        return {
            **counts,
            "seconds": round(sum(image.seconds for image in self.images), 3),
            "retries": sum(image.retries for image in self.images),
            "bytes": sum(image.size_bytes for image in self.images),
            "failures": [
                {"task": image.task, "reason": image.reason} for image in self.images if image.status == "failed"
            ],
        }


class ImageBuilder:
    """Builds images on an engine of this machine, one after another. All methods block.

    Args:
        rebuild: Build without the cache, even if the image exists.
        allow_network: Allow builds to use the engine's network and to pull missing base images.
        prune_interval: Remove untagged images after this many builds; 0: only between retries.
        min_free_bytes: A build stops when the engine's disk has less free space.
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
        self._engine_folder = str(self._engine.info().get("DockerRootDir", ""))

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
        """Return the image of a task: named, cached for the same content, or built with at most two retries."""
        started = time.monotonic()
        try:
            if task.dockerfile is None:
                return self._describe(task, "named", task.image or BASE_IMAGE, started, 0)
            base_ids = self._resolve_bases(task.dockerfile.read_text("utf-8", "replace"))
            context = pack_context(task.environment)
            tag = f"bough-task:{self._cache_key(context, base_ids)[:32]}"
            if not self._rebuild and self._find_image(tag) is not None:
                return self._describe(task, "cached", tag, started, 0)
            retries = self._build_with_retries(task, context, tag)
            return self._describe(task, "built", tag, started, retries)
        except _BuildFailed as error:
            return BuiltImage(
                task=task.name,
                status="failed",
                seconds=time.monotonic() - started,
                retries=error.retries,
                reason=str(error),
            )
        except (InvalidInput, SandboxUnavailable, ExecutorError) as error:
            return BuiltImage(task=task.name, status="failed", seconds=time.monotonic() - started, reason=error.message)

    def prune(self) -> None:
        """Remove untagged images of task builds; images without bough's label remain."""
        with suppress(*engine_errors()):
            self._engine.images.prune(filters={"dangling": True, "label": LABEL})

    def _describe(self, task: HarborTask, status: str, name: str, started: float, retries: int) -> BuiltImage:
        """Return what the engine knows about the image `name`; `started` is when the search or build began."""
        image = self._find_image(name)
        if image is None:
            raise SandboxUnavailable(
                f"base image {name} is not in the engine; load it with docker load or docker import"
            )
        return BuiltImage(
            task=task.name,
            id=str(image.id),
            status=status,
            seconds=time.monotonic() - started,
            retries=retries,
            size_bytes=int(image.attrs.get("Size", 0)),
            workdir=str(image.attrs.get("Config", {}).get("WorkingDir") or ""),
        )

    def _find_image(self, name: str) -> Any | None:
        """Return the engine's image with a name; None if missing."""
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
        """Return the ids of a Dockerfile's base images.

        Raises:
            SandboxUnavailable: A base image is missing and could not be pulled.
        """
        base_ids: list[str] = []
        for name in find_base_images(dockerfile):
            image = self._find_image(name)
            if image is None and self._allow_network:
                with suppress(*engine_errors()):
                    image = self._engine.images.pull(name)
            if image is None:
                raise SandboxUnavailable(
                    f"base image {name} is not in the engine; load it with docker load or docker import"
                )
            base_ids.append(str(image.id))
        return base_ids

    def _cache_key(self, context: bytes, base_ids: Sequence[str]) -> str:
        # The base images and the network are part of the key, since both can change what a build produces.
        return sha256(json.dumps([sha256(context).hexdigest(), *base_ids, self._allow_network]).encode()).hexdigest()

    def _build_with_retries(self, task: HarborTask, context: bytes, tag: str) -> int:
        """Build an image and return the number of retries; each retry follows a prune."""
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
        """Build an image; raises `_BuildFailed` with the last lines of the build's log."""
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
        with _BuildWatch(self._engine_folder, self._min_free_bytes, task.build_timeout_seconds) as watch:
            log: list[str] = []
            try:
                # Not the SDK's `build`, which hides the connection: only closing the connection stops a build, and a
                # build without output could otherwise not be stopped.
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
                raise _BuildFailed(watch.stop_reason or str(error), log, is_final=bool(watch.stop_reason)) from error
            if watch.stop_reason:
                raise _BuildFailed(watch.stop_reason, log, is_final=True)
        if self._find_image(tag) is None:
            raise _BuildFailed("the build ended without an image", log)


def _append_log_line(line: JsonObject, log: list[str]) -> None:
    """Append the output of a build step to the log, and trim the log to its last lines.

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
    """Closes the connection of a build that exceeds its timeout or fills the disk.

    Attributes:
        reason: Why the build was stopped; empty if it was not.
    """

    def __init__(self, engine_folder: str, min_free_bytes: int, timeout_seconds: float) -> None:
        self.stop_reason = ""
        self._engine_folder = engine_folder
        self._min_free_bytes = min_free_bytes
        self._timeout_seconds = timeout_seconds
        self._build_ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _BuildWatch:
        return self

    def begin(self, stream: Any) -> None:
        """Start watching; `stream` is the response from which the build's output is read."""
        connection: socket.socket = getattr(stream, "_sock", stream)
        self._thread = threading.Thread(target=self._watch, args=(connection,), daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._build_ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, connection: socket.socket) -> None:
        """Check the time and the disk until the build ends; shut the connection down if a limit is exceeded."""
        deadline = time.monotonic() + self._timeout_seconds
        while not self._build_ended.wait(min(_CHECK_INTERVAL_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self.stop_reason = f"it took longer than {self._timeout_seconds:g} s"
            elif self._is_disk_nearly_full():
                self.stop_reason = "the engine's disk is nearly full"
            if self.stop_reason:
                with suppress(OSError):
                    # shutdown, because close would not wake the thread that is blocked reading this socket.
                    connection.shutdown(socket.SHUT_RDWR)
                return

    def _is_disk_nearly_full(self) -> bool:
        # An engine on another machine reports a folder that does not exist here.
        if not os.path.isdir(self._engine_folder):
            return False
        return shutil.disk_usage(self._engine_folder).free < self._min_free_bytes


def pack_context(folder: Path) -> bytes:
    """Return a build context as a deterministic tar archive; links that point outside the folder are omitted.

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
            # Without owners and times, equal content gives equal bytes, which the cache key hashes.
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            total += entry.size
            if total > MAX_CONTEXT_BYTES:
                raise InvalidInput(
                    f"{folder} is larger than {MAX_CONTEXT_BYTES >> 20} MB", hint="Remove files from the build context."
                )
            if entry.isreg():
                with open(path, "rb") as source:
                    tar.addfile(entry, source)
            else:
                tar.addfile(entry)
    return buffer.getvalue()
