"""Reads files of cases as plain data within size limits, collecting faults; writes files atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from bough.errors import StoreError
from bough.types import Json, JsonObject

FaultCode: TypeAlias = Literal[
    "not-json",
    "not-yaml",
    "not-utf8",
    "shape",
    "missing",
    "type",
    "unknown-field",
    "duplicate-id",
    "empty",
    "no-prompt",
    "file-missing",
    "file-outside",
    "rubric-empty",
    "evaluator-unknown",
    "evaluator-arguments",
    "threshold",
    "too-many",
    "too-long",
    "unsupported",
]
"""Codes of faults in a set; stable."""

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One problem of a set. A case with a fault of severity `error` is omitted from the set.

    Attributes:
        file: Path of the file.
        case: Id of the case, or its position if it has no id; empty for a fault of the file.
        field: Path of the field in the case, for example `conversation[0].user_content`; empty for a fault of the case.
    """

    code: FaultCode
    file: str
    case: str
    field: str
    message: str
    severity: Severity = "error"

    def as_dict(self) -> JsonObject:
        """Return the fault as JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "case": self.case,
            "field": self.field,
            "message": self.message,
        }

    def __str__(self) -> str:
        case = f"case {self.case}" if self.case else ""
        location = ", ".join(part for part in (self.file, case, self.field) if part)
        return f"{location}: {self.message}"


MAX_FILE_BYTES = 64 << 20
MAX_CASES = 100_000
MAX_TEXT_BYTES = 1 << 20
MAX_DEPTH = 64


class FaultList:
    """Collects the faults of one file.

    Attributes:
        items: The faults, in the order in which they were added.
    """

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self.items: list[Fault] = []

    def add(
        self, code: FaultCode, message: str, *, case: str = "", field: str = "", severity: Severity = "error"
    ) -> None:
        """Add a fault of the file."""
        self.items.append(Fault(code, self.file, case, field, message, severity))

    def has_error(self, start: int) -> bool:
        """Return whether the faults from position `start` on contain an error."""
        return any(fault.severity == "error" for fault in self.items[start:])


class SetFile:
    """A parsed JSON or YAML file.

    Attributes:
        sha256: Digest of the file's bytes; empty if they cannot be read.
        data: The content; None if the file cannot be used.
    """

    def __init__(self, path: Path, faults: FaultList) -> None:
        self.path = path
        self.faults = faults
        self.sha256 = ""
        self.data: Json = self._read()

    def _read(self) -> Json:
        """Return the content of the file; None after adding a fault."""
        try:
            # Checked before reading, so that a large file cannot fill the memory.
            size = self.path.stat().st_size
            if size > MAX_FILE_BYTES:
                self.faults.add("too-long", f"has {size} bytes, more than {MAX_FILE_BYTES}")
                return None
            content = self.path.read_bytes()
        except OSError as error:
            self.faults.add("file-missing", f"cannot be read: {error.strerror}")
            return None
        self.sha256 = sha256(content).hexdigest()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.faults.add("not-utf8", f"is not UTF-8: byte {error.start}")
            return None
        data = self._parse(text)
        if _is_nested_deeper(data, MAX_DEPTH):
            self.faults.add("shape", f"is nested deeper than {MAX_DEPTH}")
            return None
        return data

    def _parse(self, text: str) -> Json:
        """Return the content of a JSON or YAML text; None after adding a fault."""
        if self.path.suffix == ".json":
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as error:
                self.faults.add("not-json", f"is not JSON: {error}")
                return None
        import yaml

        try:
            return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            self.faults.add("not-yaml", f"is not YAML: {' '.join(str(error).split())}")
            return None


def _is_nested_deeper(data: Json, depth: int) -> bool:
    # Level by level, because the data may be nested deeper than Python can recurse.
    values: list[Json] = [data]
    for _ in range(depth + 1):
        values = [child for value in values for child in _children(value)]
    return bool(values)


def _children(value: Json) -> list[Json]:
    """Return the members of an object or a list; empty for other values."""
    if isinstance(value, dict):
        return list(cast("JsonObject", value).values())
    return cast("list[Json]", value) if isinstance(value, list) else []


class Entry:
    """An object in a case; reads and checks its fields.

    Attributes:
        case: Id of the case.
        path: Path of the object in the case; empty for the case itself.
    """

    def __init__(self, data: Mapping[str, Json], faults: FaultList, case: str, path: str = "") -> None:
        self.data = data
        self.faults = faults
        self.case = case
        self.path = path

    def field_path(self, key: str) -> str:
        """Return the path of a field in the case."""
        return f"{self.path}.{key}" if self.path else key

    def fault(self, code: FaultCode, message: str, key: str = "", severity: Severity = "error") -> None:
        """Add a fault of the field `key`, or of the object without a key."""
        path = self.field_path(key) if key else self.path
        self.faults.add(code, message, case=self.case, field=path, severity=severity)

    def get(self, *names: str) -> Json:
        """Return the first value that is not null among several spellings of a field; None if there is none."""
        return next((self.data[name] for name in names if self.data.get(name) is not None), None)

    def spelling(self, *names: str) -> str:
        """Return the spelling of a field that is present; the first name if the field is missing."""
        return next((name for name in names if self.data.get(name) is not None), names[0])

    def text(self, *names: str, required: bool = False) -> str | None:
        """Return a string field; add a fault if it has another type, is too long, or is required and missing."""
        value, key = self.get(*names), self.spelling(*names)
        if value is None:
            if required:
                self.fault("missing", f"`{names[0]}` is missing", names[0])
            return None
        if not isinstance(value, str):
            self.fault("type", f"`{key}` is {type_name(value)}, not text", key)
            return None
        if len(value.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            self.fault("too-long", f"`{key}` is longer than {MAX_TEXT_BYTES} bytes", key)
            return None
        return value

    def object(self, *names: str) -> JsonObject | None:
        """Return an object field; add a fault if it has another type."""
        value, key = self.get(*names), self.spelling(*names)
        if value is None or isinstance(value, dict):
            return cast("JsonObject | None", value)
        self.fault("type", f"`{key}` is {type_name(value)}, not an object", key)
        return None

    def entry(self, *names: str) -> Entry | None:
        """Return an object field as an entry; None if it is missing or has another type."""
        data = self.object(*names)
        return None if data is None else Entry(data, self.faults, self.case, self.field_path(self.spelling(*names)))

    def entries(self, *names: str) -> list[Entry]:
        """Return a list of objects as entries; add a fault for each item of another type."""
        value, key = self.get(*names), self.spelling(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault("type", f"`{key}` is {type_name(value)}, not a list", key)
            return []
        objects: list[Entry] = []
        for number, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, dict):
                data = cast("JsonObject", item)
                objects.append(
                    Entry(data, self.faults, self.case or str(number + 1), f"{self.field_path(key)}[{number}]")
                )
            else:
                self.fault("type", f"entry {number} is {type_name(item)}, not an object", f"{key}[{number}]")
        return objects


def limit_cases(cases: list[Entry], faults: FaultList, field: str) -> list[Entry]:
    """Return the cases of a set, at most `MAX_CASES`; add a fault if there are too many or none."""
    if len(cases) > MAX_CASES:
        faults.add("too-many", f"has {len(cases)} cases, more than {MAX_CASES}")
    if not cases:
        faults.add("empty", "has no cases", field=field)
    return cases[:MAX_CASES]


def type_name(value: Json) -> str:
    """Return the type of a JSON value for a message, for example `a list`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically: write and sync a temporary file, then rename it.

    Raises:
        StoreError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Without the sync before the rename, a crash could leave an empty file.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(
            f"cannot write {path}: {error.strerror}", hint="check the folder and the free space"
        ) from error
