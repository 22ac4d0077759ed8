"""Providers that models share: one HTTP client for each provider, address and key, and so its connections."""

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
    """Providers by event loop: a connection works only on the loop that opened it.

    A provider is closed with its loop, when `asyncio.run` or bough's own loop shuts down its generators.

    Args:
        size: How many are open on a loop; the least recently used one is closed first, as soon as no run uses it.
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
        """Return the provider of the running loop, made at the first call; outside of a loop, always a new one.

        Args:
            kind: The provider's name, as in a model string.
            api_key: Its key; None: it reads the environment, where a change leads to another provider.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return make()
        providers = self._providers_of(loop)
        digest = self._digest(kind, base_url, api_key)
        if digest not in providers:
            providers[digest] = _OpenProvider(make(), loop, on_close=partial(_forget, providers, digest))
        providers.move_to_end(digest)
        while len(providers) > self._size:
            providers.popitem(last=False)[1].release()
        return providers[digest].provider

    def _providers_of(self, loop: asyncio.AbstractEventLoop) -> OrderedDict[bytes, _OpenProvider]:
        with self._lock:
            for ended in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[ended]  # its clients refer to it, so it would never be collected
            return self._by_loop.setdefault(loop, OrderedDict())

    def _digest(self, kind: str, base_url: str | None, api_key: str | None) -> bytes:
        """Return the key of a provider, from which no secret can be read."""
        environment = sorted(os.environ.items())  # SDKs read addresses, organizations and proxies from it
        return blake2b(repr((kind, base_url, api_key, environment)).encode(), key=self._salt).digest()


class _OpenProvider:
    """A provider that stays entered, so that a run which leaves it does not close its HTTP client."""

    def __init__(
        self, provider: Provider[Any], loop: asyncio.AbstractEventLoop, *, on_close: Callable[[_OpenProvider], object]
    ) -> None:
        self.provider = provider
        self._on_close = on_close
        self._lifetime = self._keep_open()
        self._loop = loop
        self._opening = loop.create_task(self._open(), name=f"open {provider.name}")
        self._closing: asyncio.Task[None] | None = None

    def release(self) -> None:
        """Close it when no run uses it any more."""
        self._closing = self._loop.create_task(self._close(), name=f"close {self.provider.name}")

    async def _open(self) -> None:
        await anext(self._lifetime)

    async def _close(self) -> None:
        await asyncio.wait({self._opening})
        await self._lifetime.aclose()

    async def _keep_open(self) -> AsyncGenerator[None]:
        # A generator, because a loop closes those that are left when it ends.
        try:
            async with self.provider:
                yield
        finally:
            self._on_close(self)


def _forget(providers: OrderedDict[bytes, _OpenProvider], digest: bytes, closed: _OpenProvider) -> None:
    if providers.get(digest) is closed:
        del providers[digest]


_shared = SharedProviders()
os.register_at_fork(after_in_child=_shared.__init__)


def find_providers() -> SharedProviders:
    """Return the providers of this process."""
    return _shared
