"""Secrets by name: their providers, the scripts that get their values, and the masking of values elsewhere.

A value appears in no `repr`, pickle, event or error. Providers are called off the event loop: when a conversation is
opened and when a run starts, so that every value can be masked, and whenever a script gets a value.
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
"""A shorter value cannot be masked, because ordinary words would contain it."""

RESOLVE_SECONDS = 10.0
"""How long `resolve` waits for a provider. A value that was not read cannot leak, because no script has it."""

_MAX_BYTES = 64 << 10

Provider: TypeAlias = Callable[[], str]
"""Returns the current value; may raise."""


@dataclass(frozen=True)
class EnvSecret:
    """A secret in an environment variable of this process."""

    variable: str

    def __call__(self) -> str:
        """Return the current value of the variable.

        Raises:
            Unavailable: The variable is not set.
        """
        value = os.environ.get(self.variable)
        if value is None:
            raise Unavailable(f"the environment variable {self.variable} is not set", hint=f"export {self.variable}=…")
        return value


@dataclass(frozen=True)
class FileSecret:
    """A secret in a file; a final line break is not part of it."""

    path: Path

    def __call__(self) -> str:
        """Return the current content of the file.

        Raises:
            Unavailable: The file cannot be read, or is not text of 1 to 65,536 bytes.
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
    """Every value that was read, by name. Narrowed copies share it, so that a fork masks the values of its source.

    Providers are called in threads, so a lock protects the values.

    Attributes:
        is_complete: Whether every provider has been called once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, set[str]] = {}
        self._masker: Masker | None = None
        self.is_complete = False

    def add(self, name: str, value: str) -> None:
        """Add a value. `masker` then returns a masker that hides it too."""
        with self._lock:
            values = self._values.setdefault(name, set())
            if value not in values:
                values.add(value)
                self._masker = None

    def masker(self) -> Masker:
        """Return the masker of all values, which is rebuilt only after a new value was added."""
        from bough.guard.masker import Masker

        with self._lock:
            if self._masker is None:
                self._masker = Masker(self._values)
            return self._masker


class Secrets:
    """The secrets of a conversation, by name. Safe to use from several threads.

    Args:
        providers: The provider of each secret, by name: `EnvSecret`, `FileSecret`, or any function without arguments.

    Raises:
        InvalidInput: A name is not valid for an environment variable, or a provider is not callable.
    """

    def __init__(self, providers: Mapping[str, Provider] | None = None) -> None:
        self._providers = dict(providers or {})
        self._seen = _SeenValues()
        for name, provider in self._providers.items():
            if not callable(provider):
                raise InvalidInput(
                    f"the provider of the secret {name!r} is a {type(provider).__name__}",
                    hint=f'give EnvSecret("{name}"), FileSecret(path), or a function without arguments',
                )
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise InvalidInput(f"{name!r} is not a name for a secret", hint="use letters, digits and underscores")

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted. No value is read."""
        return tuple(sorted(self._providers))

    def value(self, name: str) -> str:
        """Call a provider, which may block, and return the value. The value is stored only to be masked.

        Raises:
            NotFound: No secret has this name.
            Unavailable: The provider has no value at present.
            InvalidInput: The value is too short to be masked.
        """
        provider = self._providers.get(name)
        if provider is None:
            raise NotFound(f"no secret named {name!r}", hint=f"known secrets: {', '.join(self.names) or 'none'}")
        value = _read_value(name, provider)
        if len(value) < MIN_CHARACTERS:
            raise InvalidInput(
                f"the value of the secret {name} has fewer than {MIN_CHARACTERS} characters, so it cannot be masked",
                hint="use a longer value",
            )
        self._seen.add(name, value)
        return value

    async def resolve(self) -> None:
        """Read all values concurrently in threads, so that `masker` hides the current ones.

        A provider without a value at present, or that takes longer than `RESOLVE_SECONDS`, is skipped; the error is
        raised when a script needs the value.

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
        """Read and return all values.

        Raises:
            Unavailable: A provider has no value at present.
            InvalidInput: A value is too short to be masked.
        """
        return {name: self.value(name) for name in self.names}

    def for_script(self, declared: Iterable[str]) -> dict[str, str]:
        """Return the secrets that a script declares, as environment variables.

        Raises:
            NotFound: A declared name is not a secret of this conversation.
            Unavailable: A provider has no value at present.
            InvalidInput: A value is too short to be masked.
        """
        return {name: self.value(name) for name in dict.fromkeys(declared)}

    def masker(self) -> Masker:
        """Return the masker of every value that this object, or one that it was narrowed from, has read.

        Does no I/O after `resolve`. Without `resolve`, it reads all values first, which may block.

        Raises:
            InvalidInput: A value is too short to be masked.
        """
        if not self._seen.is_complete:
            for name in self.names:
                with suppress(Unavailable):  # a secret without a value cannot have leaked
                    self.value(name)
            self._seen.is_complete = True
        return self._seen.masker()

    def narrow(self, names: Iterable[str]) -> Secrets:
        """Return the secrets with these names. Both objects still mask every value that was read."""
        selected_names = set(names)
        narrowed = Secrets({name: provider for name, provider in self._providers.items() if name in selected_names})
        narrowed._seen = self._seen
        return narrowed

    def to_json(self) -> JsonObject:
        """Return a description of each secret's provider, without values."""
        return {name: _describe_provider(provider) for name, provider in sorted(self._providers.items())}

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets cannot be pickled; create them where they are used")


def secrets_from_json(value: Json) -> Secrets:
    """Return the secrets that `to_json` described. Providers that are functions cannot be restored.

    Raises:
        InvalidInput: The value is not such an object, or a provider was a function.
    """
    providers: dict[str, Provider] = {}
    descriptions = cast(dict[str, Any], value) if isinstance(value, dict) else {"": value}
    for name, description in descriptions.items():
        match description:
            case {"env": str() as variable}:
                providers[name] = EnvSecret(variable)
            case {"file": str() as path}:
                providers[name] = FileSecret(Path(path))
            case _:
                raise InvalidInput(
                    f"the secret {name!r} has no environment variable or file",
                    hint='give {"NAME": {"env": "VARIABLE"}} or {"NAME": {"file": "/path"}}',
                )
    return Secrets(providers)


def _read_value(name: str, provider: Provider) -> str:
    """Call a provider.

    Raises:
        Unavailable: The provider failed, or did not return a text.
    """
    try:
        value = provider()
    except BoughError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's function; its message may contain the value
        raise Unavailable(f"the secret {name} is not available: {type(error).__name__}") from None
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Unavailable(f"the secret {name} is not text", hint="its provider must return a str")
    return value


def _describe_provider(provider: Provider) -> JsonObject:
    if isinstance(provider, EnvSecret):
        return {"env": provider.variable}
    if isinstance(provider, FileSecret):
        return {"file": str(provider.path)}
    return {"function": getattr(provider, "__qualname__", type(provider).__qualname__)}
