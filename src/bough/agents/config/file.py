"""Find and read `config.yaml`, merge the files that it extends, and record the line of every value.

Source: agentic_patterns (`AgentSpec.from_config`, config.yaml).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml

from bough.errors import BoughError, InvalidInput, Unavailable
from bough.types import Json, JsonObject

NAME = "config.yaml"
MAX_FILES = 32
"""Maximum number of files of a configuration."""

_MAX_BYTES = 4 << 20
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::-([^}]*))?\})")

Key: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys and list indices."""


class Trust(IntEnum):
    """What the values of a file may do.

    Attributes:
        UNTRUSTED: Add names, and narrow existing entries. For a file found in a working folder.
        NAMED: Also start programs, read the environment and set addresses. For a file that the user passed.
        TRUSTED: Also name code. For the file in bough's own folder, or one that the user trusted in its current state.
    """

    UNTRUSTED = 0
    NAMED = 1
    TRUSTED = 2


@dataclass(frozen=True)
class Place:
    """A line of a file, and the trust in the value there."""

    file: Path
    line: int
    trust: Trust = field(default=Trust.UNTRUSTED, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class ConfigFile:
    """A configuration merged with the files that it extends.

    Attributes:
        path: The configuration file; None without one.
        data: The values.
        places: File and line of each value.
        digests: The sha256 of the parsed bytes of each file.
        trust: The trust in values without a place.
        ignored: An error for each value of an untrusted file that is not used.
        layers: The configurations that this one was merged from.
    """

    path: Path | None
    data: JsonObject = field(default_factory=dict[str, Any])
    places: dict[Key, Place] = field(default_factory=dict[Key, Place])
    digests: dict[Path, str] = field(default_factory=dict[Path, str])
    trust: Trust = Trust.UNTRUSTED
    ignored: list[BoughError] = field(default_factory=list[BoughError])
    layers: list[ConfigFile] = field(default_factory=list["ConfigFile"])

    @property
    def folder(self) -> Path:
        """The folder of the requested file, without links."""
        return Path(os.path.realpath(self.path or NAME)).parent

    def place(self, key: Key) -> Place:
        """Return file and line of a value, or, if the value is missing, of the nearest enclosing value."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, Place(self.path or Path(NAME), 1, self.trust))

    def mark(self, trust: Mapping[Path, Trust], default: Trust) -> None:
        """Set the trust of all values by their file; `default` is the trust of files without an entry."""
        self.trust = default
        self.places = {key: replace(place, trust=trust.get(place.file, default)) for key, place in self.places.items()}

    def merge(self, other: ConfigFile) -> None:
        """Merge `other` into this configuration: mappings are merged, lists and scalars replaced."""
        self.digests |= other.digests
        self._merge(self.data, other.data, other, ())

    def put(self, key: Key, value: Json, other: ConfigFile) -> None:
        """Set one value, with the lines that `other` has for the same key."""
        data: Any = self.data
        for name in key[:-1]:
            data = data.setdefault(name, {})
        data[key[-1]] = value
        self._replace_places(key, other)

    def _merge(self, old: JsonObject, new: JsonObject, other: ConfigFile, key: Key) -> None:
        for name, value in new.items():
            path = (*key, name)
            if isinstance(value, dict) and isinstance(old.get(name), dict):
                self.places[path] = other.place(path)
                self._merge(old[name], cast(JsonObject, value), other, path)
                continue
            old[name] = value
            self._replace_places(path, other)

    def _replace_places(self, key: Key, other: ConfigFile) -> None:
        # The places of the old value are deleted, so that the new value does not inherit its trust.
        self.places = {path: place for path, place in self.places.items() if path[: len(key)] != key}
        self.places |= {path: place for path, place in other.places.items() if path[: len(key)] == key}


def find_config(path: Path | None, *, home: Path, cwd: Path, env: Mapping[str, str]) -> list[Path]:
    """Return the configuration files to read, lowest precedence first.

    This is `path` if set, otherwise `BOUGH_CONFIG`, otherwise the file in bough's own folder and the nearest
    `config.yaml` in `cwd` or above it.
    """
    explicit = path or (Path(env["BOUGH_CONFIG"]) if env.get("BOUGH_CONFIG") else None)
    if explicit is not None:
        return [explicit.expanduser().absolute()]
    folders = (cwd.absolute(), *cwd.absolute().parents)
    project_file = next((folder / NAME for folder in folders if (folder / NAME).is_file()), None)
    files = [home / NAME] if (home / NAME).is_file() else []
    if project_file is not None and project_file != home / NAME:
        files.append(project_file)
    return files


def read_config(file: Path) -> ConfigFile:
    """Return the configuration of a file merged with the files that it extends. No value is trusted yet.

    Raises:
        InvalidInput: A file is unreadable, is not a YAML mapping, has a duplicate key, or extends itself.
    """
    config = _read(file, (), [])
    config.path = file
    return config


def _read(file: Path, extending_files: tuple[Path, ...], files: list[Path]) -> ConfigFile:
    """Return a file merged with the files that it extends.

    Args:
        extending_files: The files that extend this one, outermost first.
        files: All files read so far; this one is added.
    """
    file = Path(os.path.realpath(file))
    if file in extending_files:
        names = " > ".join(str(path) for path in (*extending_files, file))
        raise InvalidInput(f"{file} extends itself: {names}", hint="remove one of them from `extends`")
    files.append(file)
    if len(files) > MAX_FILES:
        raise InvalidInput(f"{file}: more than {MAX_FILES} files extend one another", hint="extend fewer files")
    own_config = _parse(file)
    extended: Json = own_config.data.pop("extends", None)
    names: Json = [] if extended is None else extended
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast(list[Json], names)):
        place = own_config.place(("extends",))
        raise InvalidInput(f"{place}: extends must be a path or a list of paths", hint="fix this line")
    config = ConfigFile(file, digests=dict(own_config.digests))
    for name in cast(list[str], names):
        config.merge(_read(file.parent / name, (*extending_files, file), files))
    config.merge(own_config)
    return config


def _parse(file: Path) -> ConfigFile:
    """Return the configuration of one file, without the files that it extends."""
    try:
        if file.exists() and not file.is_file():  # opening a pipe would wait for a writer
            raise InvalidInput(f"{file} is not a regular file", hint="check the path")
        with file.open("rb") as handle:
            raw = handle.read(_MAX_BYTES + 1)  # read once, so that the digest is of the parsed bytes
        text = raw.decode()
    except FileNotFoundError:
        raise InvalidInput(f"no configuration file {file}", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {file}: {error}", hint="check the file and its permissions") from error
    if len(raw) > _MAX_BYTES:
        raise InvalidInput(f"{file} is larger than {_MAX_BYTES >> 20} MiB", hint="shorten it")
    config = ConfigFile(file, digests={file: hashlib.sha256(raw).hexdigest()})
    try:
        node = cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        data = None if node is None else _Reader(config).read(node, (), 0)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidInput(f"{file}:{line}: not valid YAML: {error.problem}", hint="fix this line") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"{file} is not valid YAML: {error}", hint="fix the file") from error
    if not isinstance(data, dict | None):
        raise InvalidInput(f"{file}:1: must contain `key: value` lines", hint="for example `agents:`")
    config.data = cast("JsonObject | None", data) or {}
    return config


class _Reader:
    """Converts YAML nodes to values and records their lines."""

    def __init__(self, config: ConfigFile) -> None:
        self._config = config
        self._scalars = yaml.SafeLoader("")
        self._count = 0

    def read(self, node: yaml.Node, key: Key, depth: int) -> Json:
        """Return the value of a node, and record its line under `key`."""
        self._count += 1
        line = node.start_mark.line + 1
        if depth > 20 or self._count > 100_000:  # with aliases, a small file can expand to billions of values
            raise InvalidInput(f"{self._config.path}:{line}: nested too deeply, or too large", hint="simplify it")
        self._config.places[key] = Place(cast(Path, self._config.path), line)
        match node:
            case yaml.MappingNode():
                return self._read_mapping(node, key, depth)
            case yaml.SequenceNode():
                return [self.read(child, (*key, i), depth + 1) for i, child in enumerate(node.value)]
            case _:
                return cast(Json, self._scalars.construct_object(node))  # pyright: ignore[reportUnknownMemberType]

    def _read_mapping(self, node: yaml.MappingNode, key: Key, depth: int) -> JsonObject:
        data: JsonObject = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise InvalidInput(f"{self._config.path}:{name_node.start_mark.line + 1}: a key must be text")
            name = str(name_node.value)
            if name in data:
                line = name_node.start_mark.line + 1
                raise InvalidInput(f"{self._config.path}:{line}: {name!r} appears twice", hint="keep one of them")
            data[name] = self.read(value_node, (*key, name), depth + 1)
            self._config.places[(*key, name)] = Place(cast(Path, self._config.path), name_node.start_mark.line + 1)
        return data


def read_beneath(folder: Path, name: str) -> str:
    """Return the text of a file below a folder, without following any link in its path.

    Raises:
        OSError: The file is missing, is not a regular file, or exceeds the maximum size of a configuration.
        UnicodeDecodeError: The file is not UTF-8.
    """
    *parents, file_name = name.split(os.sep)
    if os.pardir in parents:
        raise OSError(errno.EXDEV, "outside the folder")
    # Opened one name at a time, because a program could replace a folder with a link between a check and the open.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for a writer
        with open(os.open(file_name, flags, dir_fd=fd), "rb") as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            data = handle.read(_MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > _MAX_BYTES:
        raise OSError(errno.EFBIG, "the file is too large")
    return data.decode()


def expand(value: Json, *, env: Mapping[str, str], subject: str) -> Json:
    """Return the value with `${VAR}` and `${VAR:-default}` expanded in all texts; `$$` becomes a dollar sign.

    Raises:
        Unavailable: A variable is not set and has no default.
    """
    match value:
        case str():
            return _VARIABLE.sub(lambda match: _expand_variable(match, env, subject), value)
        case dict():
            data = cast(JsonObject, value)
            return {key: expand(item, env=env, subject=f"{subject}.{key}") for key, item in data.items()}
        case list():
            return [expand(item, env=env, subject=subject) for item in cast(list[Json], value)]
        case _:
            return value


def has_variables(value: Json) -> bool:
    """Return whether any text in the value uses an environment variable."""
    match value:
        case str():
            return any(match[1] for match in _VARIABLE.finditer(value))
        case dict():
            return any(has_variables(item) for item in cast(JsonObject, value).values())
        case list():
            return any(has_variables(item) for item in cast(list[Json], value))
        case _:
            return False


def _expand_variable(match: re.Match[str], env: Mapping[str, str], subject: str) -> str:
    name, default = match[1], match[2]
    if name is None:
        return "$"
    value = env.get(name) or default
    if value is None:
        raise Unavailable(f"{subject} needs the environment variable {name}, which is not set", hint=f"export {name}=…")
    return value
