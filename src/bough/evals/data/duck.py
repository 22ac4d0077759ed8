"""DuckDB in a separate process, which is killed at the deadline because an interrupt does not end every query."""

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
"""Time between the interrupt of a query and the kill of its process."""

_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")


class DuckProcess:
    """A process that opens DuckDB files and runs one query at a time; it starts at the first request.

    Not safe for several threads at once.

    Attributes:
        projects: Files by project name.
    """

    def __init__(
        self, projects: Mapping[str, Path], *, memory_bytes: int, timeout_seconds: float, writable: bool = False
    ) -> None:
        """Set the process up without starting it."""
        self.projects = dict(projects)
        self._memory_bytes = memory_bytes
        self._timeout_seconds = timeout_seconds
        self._writable = writable
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._request_fd = self._response_fd = -1

    def __enter__(self) -> DuckProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: JsonObject) -> JsonObject:
        """Send a request and return its response.

        Raises:
            QueryError: The request failed, reached the deadline, or needed too much memory.
        """
        if self._process is None:
            self._start()
        try:
            write_frame(self._request_fd, request)
            response = self._read_response(self._timeout_seconds, interrupt=True)
        except (EOFError, OSError, ValueError) as error:
            self.close()
            raise QueryError(
                "SQL_MEMORY", "the query process ended; the query needs too much memory", session_lost=True
            ) from error
        return self._check_response(response)

    def _check_response(self, response: JsonObject) -> JsonObject:
        if "error" in response:
            code = cast("QueryErrorCode", response["error"])
            # The process is None only if _read_response killed it after a timeout.
            raise QueryError(code, self.mask(response["details"]), session_lost=self._process is None)
        return response

    def _read_response(self, seconds: float, *, interrupt: bool) -> JsonObject:
        """Return the response, or an error response after a timeout.

        Args:
            interrupt: Interrupt the query after a timeout, and kill the process only if that does not end the query.
        """
        if _is_readable(self._response_fd, seconds):
            return read_frame(self._response_fd)
        if interrupt:
            write_frame(self._request_fd, {"op": "interrupt"})
            if _is_readable(self._response_fd, INTERRUPT_SECONDS):
                read_frame(self._response_fd)  # even a result, which the next request would otherwise read
                return {"error": "SQL_TIMEOUT", "details": self._describe_timeout()}
        self.close()
        return {"error": "SQL_TIMEOUT", "details": self._describe_timeout()}

    def _describe_timeout(self) -> str:
        return f"the query was cancelled after {self._timeout_seconds:g} s"

    def _start(self) -> None:
        """Start the process and wait until it has opened the files."""
        missing = [name for name, file in self.projects.items() if not file.is_file()]
        if missing:
            raise QueryError("UNAVAILABLE", f"the file of project {missing[0]!r} does not exist")
        child_reads, self._request_fd = os.pipe()
        self._response_fd, child_writes = os.pipe()
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
            # While this process has the child's ends open, reading does not end when the child exits.
            os.close(child_reads)
            os.close(child_writes)
        settings: JsonObject = {
            "projects": {name: str(file.absolute()) for name, file in self.projects.items()},
            "memory_bytes": self._memory_bytes,
            "writable": self._writable,
        }
        try:
            write_frame(self._request_fd, settings)
            response = self._read_response(START_SECONDS, interrupt=False)
        except (EOFError, OSError, ValueError) as error:
            self.close()
            raise QueryError("UNAVAILABLE", "the query process did not start") from error
        if "error" in response:
            self.close()
            raise QueryError("UNAVAILABLE", self.mask(response["details"]))

    def mask(self, text: str) -> str:
        """Return the first line of a message, without file paths, at most 500 characters."""
        for name, file in self.projects.items():
            text = text.replace(str(file.absolute()), name)
        lines = text.strip().splitlines()
        first_line = lines[0] if lines else "it failed"
        return _PATH.sub("<path>", first_line)[:500]

    def close(self) -> None:
        """Kill the process; its temporary tables are lost. The next request starts a new process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has already ended
                # The group that `start_new_session` created for the child, so that no grandchild survives.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for fd in (self._request_fd, self._response_fd):
            if fd >= 0:
                os.close(fd)
        self._request_fd = self._response_fd = -1
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(round(seconds * 1000)))
