"""DuckDB in a separate process that is killed at the deadline: an interrupt does not end every query."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import cast

from bough.evals.data.child import read_frame, write_frame
from bough.evals.data.fault import QueryError, QueryErrorCode
from bough.types import JsonObject

START_SECONDS = 60.0
INTERRUPT_SECONDS = 0.2
"""How long an interrupted query has before its process is killed."""

_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")


class DuckProcess:
    """A process with DuckDB files open; runs one query at a time and starts at the first request.

    Not safe for several threads at once.

    Attributes:
        projects: Files by project name.
    """

    def __init__(
        self, projects: Mapping[str, Path], *, memory_bytes: int, timeout_seconds: float, writable: bool = False
    ) -> None:
        """Describe the process; nothing is started."""
        self.projects = dict(projects)
        self._memory_bytes = memory_bytes
        self._timeout_seconds = timeout_seconds
        self._writable = writable
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._requests = self._answers = -1

    def __enter__(self) -> DuckProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: JsonObject) -> JsonObject:
        """Send a request and return its answer within the deadline.

        Raises:
            QueryError: The request failed, took too long or needed too much memory.
        """
        if self._process is None:
            self._start()
        try:
            write_frame(self._requests, request)
            answer = self._read(self._timeout_seconds, interrupt=True)
        except (EOFError, OSError, ValueError) as error:
            self.close()
            raise QueryError(
                "SQL_MEMORY", "the query ended its process; it needs too much", session_lost=True
            ) from error
        return self._check(answer)

    def _check(self, answer: JsonObject) -> JsonObject:
        if "error" in answer:
            code = cast("QueryErrorCode", answer["error"])
            # _read closes the process when it misses the deadline, so this is true only after a kill.
            raise QueryError(code, self.mask(answer["details"]), session_lost=self._process is None)
        return answer

    def _read(self, seconds: float, *, interrupt: bool) -> JsonObject:
        """Read an answer; after the deadline interrupt the query, then kill its process."""
        if _is_readable(self._answers, seconds):
            return read_frame(self._answers)
        if interrupt:
            write_frame(self._requests, {"op": "interrupt"})
            if _is_readable(self._answers, INTERRUPT_SECONDS):
                read_frame(self._answers)  # discard it, even a result: unread, it would answer the next request
                return {"error": "SQL_TIMEOUT", "details": self._timeout_text()}
        self.close()
        return {"error": "SQL_TIMEOUT", "details": self._timeout_text()}

    def _timeout_text(self) -> str:
        return f"the query was ended after {self._timeout_seconds:g} s"

    def _start(self) -> None:
        missing = [name for name, file in self.projects.items() if not file.is_file()]
        if missing:
            raise QueryError("UNAVAILABLE", f"the file of project {missing[0]!r} is not there")
        child_reads, self._requests = os.pipe()
        self._answers, child_writes = os.pipe()
        self._folder = tempfile.TemporaryDirectory(prefix="bough-data-")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-I", "-m", "bough.evals.data.child", str(child_reads), str(child_writes)],
                pass_fds=(child_reads, child_writes),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},  # each thread reserves address space
                cwd=self._folder.name,
                start_new_session=True,
            )
        finally:
            # The parent must not keep the child's ends, or it would never see the end of file when the child dies.
            os.close(child_reads)
            os.close(child_writes)
        opened: JsonObject = {
            "projects": {name: str(file.absolute()) for name, file in self.projects.items()},
            "memory_bytes": self._memory_bytes,
            "writable": self._writable,
        }
        try:
            write_frame(self._requests, opened)
            answer = self._read(START_SECONDS, interrupt=False)
        except (EOFError, OSError, ValueError) as error:
            self.close()
            raise QueryError("UNAVAILABLE", "the query process did not start") from error
        if "error" in answer:
            self.close()
            raise QueryError("UNAVAILABLE", self.mask(answer["details"]))

    def mask(self, text: str) -> str:
        """Return the first line of a message without paths of this machine."""
        for name, file in self.projects.items():
            text = text.replace(str(file.absolute()), name)
        return _PATH.sub("<path>", (text.strip().splitlines() or ["it failed"])[0])[:500]

    def close(self) -> None:
        """Kill the process, which loses its temporary tables. The next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it ended already
                # The whole group: `start_new_session` made the child its leader, so no grandchild survives.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for fd in (self._requests, self._answers):
            if fd >= 0:
                os.close(fd)
        self._requests = self._answers = -1
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(round(seconds * 1000)))
