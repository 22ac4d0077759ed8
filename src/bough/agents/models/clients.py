"""Providers shared between models: one HTTP client, with its connections, for each provider, address and key."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pydantic_ai.providers import Provider

_MAX_PROVIDERS = 64


class SharedProviders:
    """Providers by event loop, because a connection works only on the loop that opened it.

    A provider is closed with its loop, when `asyncio.run` or bough's own loop shuts down its asynchronous generators.

    Args:
        size: Maximum number of open providers per loop; the least recently used one is closed first, as soon as no run
            uses it.
    """

    def __init__(self, *, size: int = _MAX_PROVIDERS) -> None:
        self._size = size
        self._salt = os.urandom(16)
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[bytes, _OpenProvider]] = (
            WeakKeyDictionary()
        )

    def find(
        self, kind: str, base_url: str | None, api_key: str | None, make: Callable[[], Provider[Any]]
    ) -> Provider[Any]:
        """Return the provider of the running loop, created at the first call; outside of a loop, always a new one.

        Args:
            kind: The provider's name, as in a model string.
            api_key: Its key. None if the provider reads the environment; a changed environment gives a new provider.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return make()  # nothing would close a shared one: no loop ends
        providers = self._providers_for_loop(loop)
        digest = self._digest(kind, base_url, api_key)
        if digest not in providers:
            providers[digest] = _OpenProvider(make(), loop, on_close=partial(_forget, providers, digest))
        providers.move_to_end(digest)
        while len(providers) > self._size:
            providers.popitem(last=False)[1].release()
        return providers[digest].provider

    def _providers_for_loop(self, loop: asyncio.AbstractEventLoop) -> OrderedDict[bytes, _OpenProvider]:
        # The lock guards the dictionary of loops only; the providers of one loop are used by its own thread.
        with self._lock:
            for closed in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[closed]  # its clients refer to it, so it would never be collected
            return self._by_loop.setdefault(loop, OrderedDict())

    def _digest(self, kind: str, base_url: str | None, api_key: str | None) -> bytes:
        """Return the dictionary key of a provider: a keyed hash, which reveals neither API key nor environment."""
        environment = sorted(os.environ.items())  # SDKs read addresses, organizations and proxies from it
        return blake2b(repr((kind, base_url, api_key, environment)).encode(), key=self._salt).digest()


class _OpenProvider:
    """A provider that stays entered: PydanticAI closes its HTTP client when the last run leaves it."""

    def __init__(
        self, provider: Provider[Any], loop: asyncio.AbstractEventLoop, *, on_close: Callable[[_OpenProvider], object]
    ) -> None:
        self.provider = provider
        self._on_close = on_close
        self._lifetime = self._keep_open()
        self._loop = loop
        # A task, because `find` is called while a model is created, which is not asynchronous. A run that starts before
        # the task enters the provider itself, so its client is open in any case.
        self._opening = loop.create_task(self._open(), name=f"open {provider.name}")
        self._closing: asyncio.Task[None] | None = None

    def release(self) -> None:
        """Leave the provider; its client is closed as soon as no run uses it."""
        self._closing = self._loop.create_task(self._close(), name=f"close {self.provider.name}")

    async def _open(self) -> None:
        await anext(self._lifetime)

    async def _close(self) -> None:
        await asyncio.wait({self._opening})  # `aclose` of a generator that has not started would run no `finally`
        await self._lifetime.aclose()

    async def _keep_open(self) -> AsyncGenerator[None]:
        # A generator, because a loop that ends closes its unfinished generators, so that no caller has to.
        try:
            async with self.provider:
                yield
        finally:
            self._on_close(self)


def _forget(providers: OrderedDict[bytes, _OpenProvider], digest: bytes, closed: _OpenProvider) -> None:
    if providers.get(digest) is closed:  # a new provider may have taken the place of one that was released
        del providers[digest]


_shared = SharedProviders()
# A forked process must not send on its parent's connections, and its lock may be held by a thread that it lacks.
os.register_at_fork(after_in_child=_shared.__init__)


def find_providers() -> SharedProviders:
    """Return the providers of this process."""
    return _shared
