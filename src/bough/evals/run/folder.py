"""The folder of a run: `run.json`, the store, the workspaces, the reports, and the lock of its process."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from bough.errors import Conflict, InvalidInput, NotFound, StoreError
from bough.evals.document import write_atomically
from bough.types import JsonObject

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
MAX_NAME = 64
_STATUS_ORDER = {"failed": 0, "error": 1, "skipped": 2, "passed": 3}
_STAMP_LENGTH = len("YYYYMMDD-HHMMSS")


class RunFolder:
    """One run on disk.

    Attributes:
        path: The run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def new(cls, root: Path, *, now: datetime | None = None) -> RunFolder:
        """Create the folder of a new run: `YYYYMMDD-HHMMSS-<6 hex>`.

        Raises:
            StoreError: The folder cannot be created.
        """
        stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
        folder = cls(root / f"{stamp}-{secrets.token_hex(3)}")
        folder.make()
        return folder

    def make(self) -> None:
        """Create the folder if it is missing.

        Raises:
            StoreError: The folder cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create {self.path}: {error.strerror}", hint="set another folder with --runs DIR"
            ) from error

    @property
    def run(self) -> str:
        """The run's id: the name of its folder."""
        return self.path.name

    @property
    def store_url(self) -> str:
        """The URL of the run's store."""
        return f"sqlite:///{self.path / 'store.db'}"

    @property
    def has_store(self) -> bool:
        """Whether the store exists."""
        return (self.path / "store.db").exists()

    def workspace(self, case: str, number: int, side: str = "") -> Path:
        """Return the path of an attempt's workspace; does not create it."""
        return self.path / "work" / plain_name(case) / f"{side}{'-' if side else ''}{number}"

    def read_record(self) -> JsonObject:
        """Return the content of `run.json`.

        Raises:
            NotFound: The file does not exist.
            StoreError: The file cannot be read.
        """
        return self._read("run.json")

    def write_record(self, record: JsonObject) -> None:
        """Write `run.json` atomically."""
        write_atomically(self.path / "run.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    def read_report(self) -> JsonObject | None:
        """Return `report.json`; None if the run has no report."""
        return self._read("report.json") if (self.path / "report.json").exists() else None

    @contextmanager
    def hold(self) -> Generator[None]:
        """Hold the run's lock; the kernel releases it if the process dies.

        Raises:
            Conflict: Another process holds the lock.
        """
        # The file is never removed: a lock on a removed file would not exclude a process that creates a new one.
        with open(self.path / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict(
                    f"the run {self.run} is in use", hint="wait until the other process has finished"
                ) from error
            yield

    def find_queries(self) -> RunFolder | None:
        """Return the run of trigger queries that belongs to this run of a skill's cases; None if there is none."""
        # The id begins with the start time, and the trigger queries never start before the cases.
        later_runs = (run for run in list_runs(self.path.parent) if run.run > self.run[:_STAMP_LENGTH])
        return next((run for run in later_runs if run.read_record().get("cases_run") == self.run), None)

    def _read(self, name: str) -> JsonObject:
        try:
            data: Any = json.loads((self.path / name).read_text("utf-8"))
        except FileNotFoundError as error:
            raise NotFound(f"{self.path} contains no run", hint="see `bough eval list`") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {self.path / name}: {error}", hint="the run is damaged") from error
        return data


def list_runs(root: Path) -> list[RunFolder]:
    """Return the runs below a folder, newest first; creates nothing."""
    try:
        names = sorted((entry.name for entry in os.scandir(root) if entry.is_dir()), reverse=True)
    except OSError:
        return []
    return [RunFolder(root / name) for name in names if (root / name / "run.json").exists()]


def summarize_run(folder: RunFolder) -> JsonObject:
    """Return the row of a run in `bough eval list`; figures are null if the run has no report.

    Raises:
        NotFound: The folder contains no run.
        StoreError: The file cannot be read.
    """
    record, report = folder.read_record(), folder.read_report()
    summary: JsonObject = {} if report is None else report["summary"]
    return {
        "run": folder.run,
        "kind": record["kind"],
        "set": record["set"]["name"],
        "model": record["model"],
        "started": record["started"],
        "pass_rate": summary.get("pass_rate"),
        "passed": summary.get("passed"),
        "attempts": summary.get("attempts"),
        "threshold": record["threshold"],
    }


def sort_notes(notes: Sequence[JsonObject], sides: Sequence[str]) -> list[JsonObject]:
    """Return the notes sorted by side in the order of `sides`, then by status, failures first."""

    def key(note: JsonObject) -> tuple[int, int]:
        side = str(note.get("side", ""))
        return sides.index(side) if side in sides else len(sides), _STATUS_ORDER.get(str(note["status"]), 1)

    return sorted(notes, key=key)


def find_run(root: Path, name: str) -> RunFolder:
    """Return the run with an id, a unique part of an id, or a folder; `-` returns the last run.

    `-` skips runs of trigger queries, because they belong to the run of a skill's cases.

    Raises:
        NotFound: No run matches.
        InvalidInput: Several runs match.
    """
    if os.sep in name and (Path(name) / "run.json").exists():
        return RunFolder(Path(name))
    runs = list_runs(root)
    if name == "-" and runs:
        return next((run for run in runs if run.read_record().get("cases_run") is None), runs[0])
    exact = [run for run in runs if run.run == name]
    matching = exact or [run for run in runs if name in run.run]
    if not matching:
        raise NotFound(f"there is no run {name!r}", hint="see `bough eval list`")
    if len(matching) > 1:
        names = ", ".join(run.run for run in matching[:5])
        raise InvalidInput(f"{name!r} matches {len(matching)} runs: {names}", hint="give a longer part of the id")
    return matching[0]


def plain_name(text: str) -> str:
    """Convert an id to a folder name: `[A-Za-z0-9._-]`, at most 64 characters; a changed id gets a digest suffix."""
    plain = _UNSAFE_CHARACTERS.sub("-", text)[:MAX_NAME].strip(".") or "case"
    return plain if plain == text else f"{plain[: MAX_NAME - 9]}-{sha256(text.encode()).hexdigest()[:8]}"
