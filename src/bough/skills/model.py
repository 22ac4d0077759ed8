"""What a skill is: the words every other module here speaks in.

Source: seed 002 (`Skill`, `KeywordTrigger`, `TaskTrigger`, `InputMetadata`), seed 004 (`SkillMetadata`, `body`,
`script_paths`), the Agent Skills specification (fields of the frontmatter, the folder).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from bough.errors import InvalidInput

Severity: TypeAlias = Literal["error", "warning", "info"]
Scope: TypeAlias = Literal["configured", "project", "user", "installed", "builtin", "code"]
SkillKind: TypeAlias = Literal["repository", "knowledge", "task", "path", "agent"]

_LENGTH = len("SKILL.md")
MAX_FILE_BYTES = 1 << 20
"""What is ever read of one file."""


class Diagnostic(NamedTuple):
    """Something a reader noticed, and how to fix it.

    Attributes:
        code: Stable, in kebab case, for example `yaml-unquoted-colon`.
        severity: `error`: not loaded, or loaded wrongly; `warning`: loaded after a repair; `info`: worth knowing.
        line: Counted from 1 in the file; None when it is about the whole.
        fix: What to write instead; empty when there is nothing to do.
        path: The file it is about.
    """

    code: str
    severity: Severity
    message: str
    line: int | None = None
    fix: str = ""
    path: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The diagnostic as JSON, with the keys of its fields."""
        return self._asdict()


def _words(given: Iterable[str]) -> tuple[str, ...]:
    """One word, or several in whatever they were given."""
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True)
class KeywordTrigger:
    """Activates a skill when one of the keywords is in a user message.

    Attributes:
        keywords: Words or phrases; one with the prefix `re:` is a regular expression in RE2's dialect.
    """

    keywords: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keywords", _words(self.keywords))


@dataclass(frozen=True, slots=True)
class TaskTrigger:
    """A keyword trigger of a skill that takes inputs from the user.

    Attributes:
        triggers: Words or phrases, matched as those of a `KeywordTrigger`.
    """

    triggers: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "triggers", _words(self.triggers))


@dataclass(frozen=True, slots=True)
class PathTrigger:
    """Activates a skill when a tool touches a file that matches.

    Attributes:
        globs: Patterns relative to the workspace, with `**`, `?`, `[…]` and `{a,b}`.
    """

    globs: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "globs", _words(self.globs))


Trigger: TypeAlias = KeywordTrigger | TaskTrigger | PathTrigger


@dataclass(frozen=True, slots=True)
class InputMetadata:
    """An input that a task skill takes; it stands in its instructions as `${name}`."""

    name: str
    description: str = ""
    required: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """Files of a skill, relative to its folder, sorted; never a link that leads out of it.

    Attributes:
        complete: Whether all files are listed; False when a bound was reached.
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
    """What is known of a skill before it is activated (tier 1).

    A tuple, for there may be many thousands: small, and quick to make.

    Attributes:
        path: The file that defines it: `<folder>/SKILL.md` or a flat `<name>.md`.
        source: The root it was found under.
        scope: Where that root comes from; decides which of two skills of one name wins.
        trigger: What activates it by itself; None for the others.
        inputs: What a task skill asks for.
        keywords: Words to search by besides name and description.
        invocable: Whether a model may load it by itself.
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
        """Make one from the path of its file."""
        file = path if type(path) is str else str(path)
        values = (name, description, file, source, scope, trigger, inputs, keywords, invocable)
        return tuple.__new__(cls, values)  # pyright: ignore[reportUnknownMemberType] - half the time of the named way

    @property
    def path(self) -> Path:
        """The file that defines it."""
        return Path(self.file)

    @property
    def kind(self) -> SkillKind:
        """Which of the five types it is."""
        return kind_of(self.path, self.trigger)

    @property
    def catalogued(self) -> bool:
        """Whether a model is shown it: a folder, or a file that nothing activates by itself."""
        named = is_skill_file(self.file.rpartition("/")[2])
        return self.invocable and (named or self.trigger == KeywordTrigger(()))

    @property
    def folder(self) -> Path:
        """The folder the file lies in."""
        return self.path.parent


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a skill's file below its frontmatter.

    Attributes:
        text: Line feeds only, without blank lines around.
        sha256: Of the file's bytes as read, hexadecimal.
        truncated: Whether the file was longer than what is ever read.
    """

    text: str
    sha256: str
    truncated: bool = False

    @classmethod
    def of(cls, body: str, data: bytes) -> Document:
        """Return the instructions that a file's text and bytes make."""
        return cls(body.strip(), hashlib.sha256(data).hexdigest(), len(data) >= MAX_FILE_BYTES)


@runtime_checkable
class SkillLoader(Protocol):
    """Reads what a skill's file and folder hold besides the frontmatter, when it is first asked for."""

    def read_document(self, path: Path) -> Document:
        """Return the instructions of a file.

        Raises:
            SkillRefused: It has gone, or cannot be read any more.
        """
        ...

    def list_resources(self, folder: Path) -> Resources:
        """Return the files beside the instructions. O(files), bounded."""
        ...


class _LazyContent:
    """`Skill.content`: the text given in code, else the file's, read when first asked for and then kept."""

    def __get__(self, skill: Skill | None, owner: type | None = None) -> str:
        return "" if skill is None else skill.document.text

    def __set__(self, skill: Skill, text: str) -> None:
        if text:
            skill.__dict__["_document"] = Document(text, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())


@dataclass(frozen=True, kw_only=True)
class Skill:
    """A folder (or file) of know-how.

    Everything but `content`, `content_hash` and `resources` is known without reading the file's body or its folder.

    Attributes:
        name: Unique in a registry.
        description: What it does and when to use it.
        content: The instructions; read from `path` at first use unless given.
        path: The file that defines it; None for a skill made in code.
        trigger: None for one that is always active (a flat file) or disclosed progressively (a folder).
        mcp_tools: Server name to configuration, in FastMCP's format, variables not yet expanded.
        frontmatter: All of it; scalars are text.
        allowed_tools: Tool names or `Tool(pattern)`; None when the file says nothing.
        source: The root it was found under.
        invocable: Whether a model may load it by itself (`disable-model-invocation`).
        hooks: Whether it declares hooks.
        loader: Reads its file and folder; what `read_skill` returns has one.
    """

    name: str
    description: str = ""
    content: _LazyContent = _LazyContent()
    path: Path | None = None
    trigger: Trigger | None = None
    inputs: tuple[InputMetadata, ...] = ()
    mcp_tools: Mapping[str, Any] = field(default_factory=dict[str, Any])
    frontmatter: Mapping[str, Any] = field(default_factory=dict[str, Any])
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
        """The instructions with the hash of the bytes they came from; read once.

        Raises:
            SkillRefused: The file has gone or cannot be read any more.
        """
        held: dict[str, Any] = self.__dict__
        if "_document" not in held:
            held["_document"] = self._read()
        return held["_document"]

    def _read(self) -> Document:
        if unhashed := self.__dict__.pop("_unhashed", None):
            return Document.of(*unhashed)
        return Document.of("", b"") if self.path is None else self._loader().read_document(self.path)

    def _loader(self) -> SkillLoader:
        if self.loader is None:
            raise InvalidInput(
                f"the skill {self.name!r} was made in code and cannot read {self.path}",
                hint="get it with read_skill(path), or give its content and no path",
            )
        return self.loader

    @property
    def body(self) -> str:
        """`content` under its other name (seed 004)."""
        return self.document.text

    @property
    def content_hash(self) -> str:
        """sha256 of the bytes the instructions came from, hexadecimal."""
        return self.document.sha256

    @property
    def folder(self) -> Path | None:
        """The skill's own folder; None for a flat file or a skill made in code."""
        return self.path.parent if self.path is not None and is_skill_file(self.path.name) else None

    @property
    def kind(self) -> SkillKind:
        """Which of the five types it is."""
        return kind_of(self.path, self.trigger)

    @property
    def resources(self) -> Resources:
        """The files beside the instructions; the folder is walked once, O(files), bounded."""
        held: dict[str, Any] = self.__dict__
        if "_resources" not in held:
            folder = self.folder
            held["_resources"] = Resources() if folder is None else self._loader().list_resources(folder)
        return held["_resources"]

    @property
    def script_paths(self) -> list[Path]:
        """Absolute paths of `resources.scripts` (seed 004)."""
        return self._absolute(self.resources.scripts)

    @property
    def reference_paths(self) -> list[Path]:
        """Absolute paths of `resources.references` (seed 004)."""
        return self._absolute(self.resources.references)

    @property
    def asset_paths(self) -> list[Path]:
        """Absolute paths of `resources.assets` (seed 004)."""
        return self._absolute(self.resources.assets)

    def _absolute(self, names: tuple[str, ...]) -> list[Path]:
        folder = self.folder
        return [] if folder is None else [folder / name for name in names]

    def fresh(self) -> Skill:
        """The same skill, its content and resources read again when asked for."""
        again = copy(self)
        if self.path is not None:
            for held in ("_document", "_resources", "_unhashed"):
                again.__dict__.pop(held, None)
        return again

    def summary(self) -> SkillMetadata:
        """What tier 1 shows of it."""
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
    """Whether a file of this name, in letters of any case, makes its folder a skill."""
    return len(name) == _LENGTH and name.lower() == "skill.md"


def kind_of(path: Path | None, trigger: Trigger | None) -> SkillKind:
    """Which of the five types a file with this trigger is."""
    match trigger:
        case KeywordTrigger():
            return "knowledge"
        case TaskTrigger():
            return "task"
        case PathTrigger():
            return "path"
        case None:
            return "agent" if path is not None and is_skill_file(path.name) else "repository"
