"""Secrets by name: where each comes from, who gets it, and nothing of it anywhere else.

A value appears in no `repr`, pickle, event or error. Providers are asked off the event loop: once when a conversation
is opened and once at the start of each run, so that every value can be hidden; and for whatever is given a value.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from bough.errors import BoughError, InvalidInput, NotFound, Unavailable
from bough.portal import threads
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.guard.masker import Masker

MIN_CHARACTERS = 6
"""A shorter value cannot be masked: it would be found in ordinary words."""

RESOLVE_SECONDS = 10.0
"""How long a provider may take; a secret that is not there by then has no value yet, and nothing of it can leak."""

_MAX_BYTES = 64 << 10

Provider: TypeAlias = Callable[[], str]
"""Returns the value now; may raise."""


@dataclass(frozen=True)
class EnvSecret:
    """A secret in an environment variable of this process."""

    variable: str

    def __call__(self) -> str:
        """The variable's value now.

        Raises:
            Unavailable: It is not set.
        """
        value = os.environ.get(self.variable)
        if value is None:
            raise Unavailable(f"the environment variable {self.variable} is not set", hint=f"export {self.variable}=…")
        return value


@dataclass(frozen=True)
class FileSecret:
    """A secret in a file; a line end at its end is not part of it."""

    path: Path

    def __call__(self) -> str:
        """The file's content now.

        Raises:
            Unavailable: It cannot be read, or is not text of at most 64 KiB.
        """
        try:
            with self.path.open("rb") as handle:
                data = handle.read(_MAX_BYTES + 1)
            text = data.decode()
        except OSError as error:
            raise Unavailable(f"the secret's file {self.path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        if not text or len(text) > _MAX_BYTES:
            raise Unavailable(f"the secret's file {self.path} is not text of 1 to {_MAX_BYTES} bytes")
        return text.removesuffix("\n").removesuffix("\r")


class _SeenValues:
    """Every value that was ever read, by name: shared by all narrowed copies, for a fork hides what its source had.

    Providers are asked in threads, so whatever changes or reads the values holds the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, set[str]] = {}
        self._masker: Masker | None = None
        self.is_complete = False

    def add(self, name: str, value: str) -> None:
        """Keep a value; the next masker hides it too."""
        with self._lock:
            values = self._values.setdefault(name, set())
            if value not in values:
                values.add(value)
                self._masker = None

    def masker(self) -> Masker:
        """Return what hides all of them, made anew only when there is a new one."""
        from bough.guard.masker import Masker

        with self._lock:
            if self._masker is None:
                self._masker = Masker(self._values)
            return self._masker


class Secrets:
    """The secrets of a conversation, by name. Safe to use from several threads.

    Args:
        providers: Where each value comes from: `EnvSecret`, `FileSecret`, or any function without arguments.

    Raises:
        InvalidInput: A name is none that an environment variable can have, or what gives its value is not a function.
    """

    def __init__(self, providers: Mapping[str, Provider] | None = None) -> None:
        self._providers = dict(providers or {})
        self._seen = _SeenValues()
        for name, provider in self._providers.items():
            if not callable(provider):
                raise InvalidInput(
                    f"the secret {name!r} is given as {type(provider).__name__}",
                    hint=f'give what reads it: EnvSecret("{name}"), or a function without arguments',
                )
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise InvalidInput(f"{name!r} is not a name for a secret", hint="use letters, digits and underscores")

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted; reads no value."""
        return tuple(sorted(self._providers))

    def value(self, name: str) -> str:
        """Return one value, read now: it blocks as its provider does. It is remembered only so that it can be masked.

        Raises:
            NotFound: No secret has that name.
            Unavailable: Its provider has no value now.
            InvalidInput: The value is too short to be masked.
        """
        provider = self._providers.get(name)
        if provider is None:
            raise NotFound(f"no secret named {name!r}", hint=f"there are: {', '.join(self.names) or 'none'}")
        value = _provide(name, provider)
        if len(value) < MIN_CHARACTERS:
            raise InvalidInput(
                f"the value of the secret {name} has fewer than {MIN_CHARACTERS} characters, so it cannot be masked",
                hint="use a longer one",
            )
        self._seen.add(name, value)
        return value

    async def resolve(self) -> None:
        """Read every value once, all providers at once in threads, so that `masker` hides what they are now.

        A provider that has no value now, or gives none within `RESOLVE_SECONDS`, is passed over: whoever needs the
        value itself is told.

        Raises:
            InvalidInput: A value is too short to be masked.
        """
        await asyncio.gather(*(self._resolve(name) for name in self.names))
        self._seen.is_complete = True

    async def _resolve(self, name: str) -> None:
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(RESOLVE_SECONDS):
                await asyncio.get_running_loop().run_in_executor(threads(), self.value, name)

    def values(self) -> dict[str, str]:
        """Return every value, read now.

        Raises:
            Unavailable: A provider has no value now.
            InvalidInput: A value is too short to be masked.
        """
        return {name: self.value(name) for name in self.names}

    def for_script(self, declared: Iterable[str]) -> dict[str, str]:
        """Return the environment of a script that declares these names, and nothing but these.

        Raises:
            NotFound: A declared name is not a secret of this conversation.
            Unavailable: A provider has no value now.
            InvalidInput: A value is too short to be masked.
        """
        return {name: self.value(name) for name in dict.fromkeys(declared)}

    def masker(self) -> Masker:
        """Return what hides every value that was read by this object or one that it was narrowed from. No I/O.

        Where `resolve` was not awaited before, every value is read here first, and that blocks.

        Raises:
            InvalidInput: A value is too short to be masked.
        """
        if not self._seen.is_complete:
            for name in self.names:
                with suppress(Unavailable):  # it has no value: nothing of it can be anywhere
                    self.value(name)
            self._seen.is_complete = True
        return self._seen.masker()

    def narrow(self, names: Iterable[str]) -> Secrets:
        """Return those of these names; what was seen already stays masked in both."""
        kept_names = set(names)
        out = Secrets({name: provider for name, provider in self._providers.items() if name in kept_names})
        out._seen = self._seen
        return out

    def to_json(self) -> JsonObject:
        """Where each comes from, never what it is."""
        return {name: _reference(provider) for name, provider in sorted(self._providers.items())}

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not pickled; make them again where they are used")


def secrets_from_json(value: Json) -> Secrets:
    """Return the secrets that `to_json` referred to; those of functions cannot be made again.

    Raises:
        InvalidInput: It is no such object, or refers to a function.
    """
    providers: dict[str, Provider] = {}
    for name, reference in cast(dict[str, Any], value).items() if isinstance(value, dict) else [("", value)]:
        match reference:
            case {"env": str() as variable}:
                providers[name] = EnvSecret(variable)
            case {"file": str() as path}:
                providers[name] = FileSecret(Path(path))
            case _:
                raise InvalidInput(
                    f"the secret {name!r} does not say where its value is",
                    hint='give {"NAME": {"env": "VARIABLE"}} or {"NAME": {"file": "/path"}}',
                )
    return Secrets(providers)


def _provide(name: str, provider: Provider) -> str:
    try:
        value = provider()
    except BoughError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's function; its message might hold the value
        raise Unavailable(f"the secret {name} is not available: {type(error).__name__}") from None
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Unavailable(f"the secret {name} is not text", hint="its provider must return a str")
    return value


def _reference(provider: Provider) -> JsonObject:
    if isinstance(provider, EnvSecret):
        return {"env": provider.variable}
    if isinstance(provider, FileSecret):
        return {"file": str(provider.path)}
    return {"function": getattr(provider, "__qualname__", type(provider).__qualname__)}
