"""The data types that all modules of this package share.

Source: OpenHands (`Skill`, `KeywordTrigger`, `TaskTrigger`, `InputMetadata`), agentic_patterns (`SkillMetadata`,
`body`, `script_paths`), the Agent Skills specification (fields of the frontmatter, the folder).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from bough.errors import InvalidInput
from bough.types import Json

Severity: TypeAlias = Literal["error", "warning", "info"]
Scope: TypeAlias = Literal["configured", "project", "user", "installed", "builtin", "code"]
SkillKind: TypeAlias = Literal["repository", "knowledge", "task", "path", "agent"]

MAX_FILE_BYTES = 1 << 20
"""How many bytes of a file are read at most."""

_NAME_LENGTH = len("SKILL.md")


class Diagnostic(NamedTuple):
    """A problem found in a file, and how to fix it.

    Attributes:
        code: Stable, in kebab case, for example `yaml-unquoted-colon`.
        severity: `error`: the file was not loaded, or not correctly; `warning`: it was loaded after a repair; `info`:
            there is nothing to correct.
        line: 1-based line of the file; None if the problem concerns the whole file.
        fix: What to write instead; empty if there is nothing to correct.
        path: The file with the problem.
    """

    code: str
    severity: Severity
    message: str
    line: int | None = None
    fix: str = ""
    path: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnostic as JSON, with its field names as keys."""
        return self._asdict()


class Notes(list[Diagnostic]):
    """Collects the diagnostics of one file while it is read."""

    def warn(self, code: str, message: str, fix: str = "", line: int | None = None) -> None:
        """Add a `warning`: the file is loaded after a repair."""
        self.append(Diagnostic(code, "warning", message, line, fix))

    def error(self, code: str, message: str, fix: str = "", line: int | None = None) -> None:
        """Add an `error`: the file is refused, or violates the specification."""
        self.append(Diagnostic(code, "error", message, line, fix))


def _as_tuple_of_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words as a tuple; a `str` is a single word."""
    return (words,) if isinstance(words, str) else tuple(words)


@dataclass(frozen=True, slots=True)
class KeywordTrigger:
    """Activates a skill when one of the keywords is in a user message.

    Attributes:
        keywords: Words or phrases; the prefix `re:` marks an RE2 regular expression.
    """

    keywords: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keywords", _as_tuple_of_words(self.keywords))


@dataclass(frozen=True, slots=True)
class TaskTrigger:
    """A keyword trigger of a skill that takes inputs from the user.

    Attributes:
        triggers: Words or phrases, matched like those of a `KeywordTrigger`.
    """

    triggers: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "triggers", _as_tuple_of_words(self.triggers))


@dataclass(frozen=True, slots=True)
class PathTrigger:
    """Activates a skill when a tool touches a matching file.

    Attributes:
        globs: Patterns relative to the workspace, with `**`, `?`, `[…]` and `{a,b}`.
    """

    globs: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "globs", _as_tuple_of_words(self.globs))


Trigger: TypeAlias = KeywordTrigger | TaskTrigger | PathTrigger


@dataclass(frozen=True, slots=True)
class InputMetadata:
    """An input of a task skill, written `${name}` in its instructions."""

    name: str
    description: str = ""
    required: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """The files of a skill, as sorted paths relative to its folder, without links that leave the folder.

    Attributes:
        complete: Whether all files are listed; False if a limit was reached.
    """

    scripts: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    complete: bool = True

    @property
    def all(self) -> tuple[str, ...]:
        """Every file: scripts, references, assets, other."""
        return self.scripts + self.references + self.assets + self.other


class _SkillMetadata(NamedTuple):
    name: str
    description: str
    file: str
    source: str = ""
    scope: Scope = "configured"
    trigger: Trigger | None = None
    inputs: tuple[InputMetadata, ...] = ()
    keywords: tuple[str, ...] = ()
    invocable: bool = True


class SkillMetadata(_SkillMetadata):
    """The part of a skill that is read before it is activated (tier 1).

    A tuple, because there may be thousands of them: it is small and fast to create.

    Attributes:
        path: The file that defines the skill: `<folder>/SKILL.md` or a flat `<name>.md`.
        source: The root below which it was found.
        scope: The kind of that root; of two skills with the same name, it decides which one is used.
        trigger: What activates the skill without a call; None if it must be called.
        inputs: The inputs of a task skill.
        keywords: Additional words for searches.
        invocable: Whether a model may load it.
    """

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        description: str,
        path: Path | str,
        source: str = "",
        scope: Scope = "configured",
        trigger: Trigger | None = None,
        inputs: tuple[InputMetadata, ...] = (),
        keywords: tuple[str, ...] = (),
        invocable: bool = True,
    ) -> Self:
        """Create the metadata of the skill that the file `path` defines."""
        file = path if type(path) is str else str(path)
        values = (name, description, file, source, scope, trigger, inputs, keywords, invocable)
        return tuple.__new__(cls, values)  # pyright: ignore[reportUnknownMemberType] - twice as fast as super().__new__

    @property
    def path(self) -> Path:
        """The file that defines the skill."""
        return Path(self.file)

    @property
    def kind(self) -> SkillKind:
        """Which of the five kinds of skills it is."""
        return determine_kind(self.path, self.trigger)

    @property
    def catalogued(self) -> bool:
        """Whether models see it in the catalogue: a skill in a folder, or a flat file that no trigger activates."""
        is_folder = is_skill_file(self.file.rpartition("/")[2])
        return self.invocable and (is_folder or self.trigger == KeywordTrigger(()))

    @property
    def folder(self) -> Path:
        """The folder that contains the file."""
        return self.path.parent


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a skill's file after its frontmatter.

    Attributes:
        text: Without leading and trailing blank lines; its lines end with a line feed only.
        sha256: Hash of the file's bytes as read, hexadecimal.
        truncated: Whether the file is longer than `MAX_FILE_BYTES`.
    """

    text: str
    sha256: str
    truncated: bool = False

    @classmethod
    def from_file(cls, body: str, data: bytes) -> Document:
        """Create a document from the body of a file and the bytes that were read of it."""
        return cls(body.strip(), hashlib.sha256(data).hexdigest(), len(data) >= MAX_FILE_BYTES)


@runtime_checkable
class SkillLoader(Protocol):
    """Reads a skill's body and the list of its files on first access."""

    def read_document(self, path: Path) -> Document:
        """Return the instructions of a file.

        Raises:
            SkillRefused: The file does not exist or cannot be read.
        """
        ...

    def list_resources(self, folder: Path) -> Resources:
        """Return the files of a skill's folder. O(files), at most 2,000."""
        ...


class _LazyContent:
    """The descriptor of `Skill.content`: the text passed in code, else the file's body, cached on first access."""

    def __get__(self, skill: Skill | None, owner: type | None = None) -> str:
        return "" if skill is None else skill.document.text

    def __set__(self, skill: Skill, text: str) -> None:
        if text:
            skill.__dict__["_document"] = Document(text, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())


@dataclass(frozen=True, kw_only=True)
class Skill:
    """A skill: a folder with a `SKILL.md`, or a flat Markdown file.

    `content` and `content_hash` are read from the file on first access, `resources` from its folder.

    Attributes:
        name: Unique in a registry.
        description: What it does and when to use it.
        content: The instructions; read from `path` unless passed.
        path: The file that defines it; None for a skill created in code.
        trigger: None for a flat file that is always active, and for a folder that a model loads when it needs it.
        mcp_tools: Server name to configuration, in FastMCP's format, with unexpanded variables.
        frontmatter: The whole frontmatter; scalars are text.
        allowed_tools: Tool names or `Tool(pattern)`; None if the file has no such field.
        source: The root below which it was found.
        invocable: Whether a model may load it (`disable-model-invocation`).
        hooks: Whether it declares hooks.
        loader: Reads its file and folder; set for skills that were read from files.
    """

    name: str
    description: str = ""
    content: _LazyContent = _LazyContent()
    path: Path | None = None
    trigger: Trigger | None = None
    inputs: tuple[InputMetadata, ...] = ()
    mcp_tools: Mapping[str, Json] = field(default_factory=dict[str, Json])
    frontmatter: Mapping[str, Json] = field(default_factory=dict[str, Json])
    license: str | None = None
    compatibility: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed_tools: tuple[str, ...] | None = None
    source: str = ""
    scope: Scope = "code"
    diagnostics: tuple[Diagnostic, ...] = ()
    keywords: tuple[str, ...] = ()
    invocable: bool = True
    hooks: bool = False
    loader: SkillLoader | None = field(default=None, repr=False, compare=False)

    @property
    def document(self) -> Document:
        """The instructions, and the hash of the bytes from which they were read; read once.

        Raises:
            SkillRefused: The file does not exist or cannot be read.
        """
        attributes: dict[str, Any] = self.__dict__
        if "_document" not in attributes:
            attributes["_document"] = self._read_document()
        return attributes["_document"]

    def _read_document(self) -> Document:
        # `read_file` keeps the bytes unhashed, because the text of most skills is never used.
        if unhashed := self.__dict__.pop("_unhashed", None):
            return Document.from_file(*unhashed)
        return Document.from_file("", b"") if self.path is None else self._require_loader().read_document(self.path)

    def _require_loader(self) -> SkillLoader:
        if self.loader is None:
            raise InvalidInput(
                f"skill {self.name!r} was created in code and cannot read {self.path}",
                hint="load it with read_skill(path), or pass content and no path",
            )
        return self.loader

    @property
    def body(self) -> str:
        """Alias of `content` (agentic_patterns)."""
        return self.document.text

    @property
    def content_hash(self) -> str:
        """sha256 of the bytes from which the instructions were read, hexadecimal."""
        return self.document.sha256

    @property
    def folder(self) -> Path | None:
        """The skill's own folder; None for a flat file or a skill created in code."""
        return self.path.parent if self.path is not None and is_skill_file(self.path.name) else None

    @property
    def kind(self) -> SkillKind:
        """Which of the five kinds of skills it is."""
        return determine_kind(self.path, self.trigger)

    @property
    def resources(self) -> Resources:
        """The files of the skill's folder; listed once. O(files), at most 2,000."""
        attributes: dict[str, Any] = self.__dict__
        if "_resources" not in attributes:
            folder = self.folder
            attributes["_resources"] = Resources() if folder is None else self._require_loader().list_resources(folder)
        return attributes["_resources"]

    @property
    def script_paths(self) -> list[Path]:
        """Absolute paths of `resources.scripts` (agentic_patterns)."""
        return self._make_absolute(self.resources.scripts)

    @property
    def reference_paths(self) -> list[Path]:
        """Absolute paths of `resources.references` (agentic_patterns)."""
        return self._make_absolute(self.resources.references)

    @property
    def asset_paths(self) -> list[Path]:
        """Absolute paths of `resources.assets` (agentic_patterns)."""
        return self._make_absolute(self.resources.assets)

    def _make_absolute(self, names: tuple[str, ...]) -> list[Path]:
        folder = self.folder
        return [] if folder is None else [folder / name for name in names]

    def fresh(self) -> Skill:
        """Return a copy that reads its content and resources from the files again."""
        unread = copy(self)
        if self.path is not None:
            for attribute in ("_document", "_resources", "_unhashed"):
                unread.__dict__.pop(attribute, None)
        return unread

    def with_fields(self, **fields: object) -> Skill:
        """Return a copy with other values for some fields. Reads no file.

        `dataclasses.replace` would read `content` and pass it as text from code, with another hash.
        """
        changed = copy(self)
        changed.__dict__.update(fields)
        return changed

    def summary(self) -> SkillMetadata:
        """Return its tier 1 metadata."""
        return SkillMetadata(
            self.name,
            self.description,
            self.path or Path(),
            self.source,
            self.scope,
            self.trigger,
            self.inputs,
            self.keywords,
            self.invocable,
        )


def is_skill_file(name: str) -> bool:
    """Whether a name is `SKILL.md` in any case, so that the file makes its folder a skill."""
    # Length first, because it is fast: discovery calls this for every name, and nearly all have another length.
    return len(name) == _NAME_LENGTH and name.lower() == "skill.md"


def determine_kind(path: Path | None, trigger: Trigger | None) -> SkillKind:
    """Return the kind of a skill from its file and its trigger."""
    match trigger:
        case KeywordTrigger():
            return "knowledge"
        case TaskTrigger():
            return "task"
        case PathTrigger():
            return "path"
        case None:
            return "agent" if path is not None and is_skill_file(path.name) else "repository"
