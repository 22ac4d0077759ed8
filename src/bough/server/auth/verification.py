"""Verifying the keys of callers. While a store has no key, every caller is the tenant `local`."""

from __future__ import annotations

import hmac
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from bough.errors import LimitExceeded, Unauthenticated
from bough.server.auth.caller import Caller
from bough.server.auth.keys import KeyTable, hash_key
from bough.server.auth.sessions import BrowserSession, end_session, open_session
from bough.server.metrics import Metrics

_KEY_TEXT = re.compile(r"bough_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_CACHE_SECONDS = 1.0
_MAX_CACHED = 10_000
_TOUCH_INTERVAL_SECONDS = 60.0
_MAX_WRONG_PER_MINUTE = 10
_NO_DIGEST = bytes(32)


@dataclass
class _Verification:
    """The result of a lookup: the holder of a key, None if the key is invalid, and when it was looked up."""

    caller: Caller | None
    looked_up_at: float


class Keys:
    """Verifies the keys of one server's callers."""

    def __init__(self, table: KeyTable, metrics: Metrics, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.table = table
        self._metrics = metrics
        self._monotonic = monotonic
        self._verified: OrderedDict[bytes, _Verification] = OrderedDict()
        self._touched: dict[str, float] = {}
        self._wrong_key_times: OrderedDict[str, list[float]] = OrderedDict()
        self._keys_exist = False
        self._existence_read_at: float | None = None

    async def authenticate(self, key: str | None, client: str) -> Caller:
        """Return the holder of a key; the tenant `local` while the store has no key.

        Args:
            client: Address of the caller; wrong keys are counted by address.

        Raises:
            Unauthenticated: The key is missing, or it is unknown, wrong, expired or revoked;
                the error is the same for every invalid key.
            LimitExceeded: The address sent too many wrong keys.
        """
        if not await self.are_needed():
            return Caller()
        if key is None:
            raise Unauthenticated("a key is needed", hint="send X-Session-API-Key or Authorization: Bearer")
        caller = await self._verify(key)
        if caller is None:  # checked first: a valid key is accepted even if others guess keys from the same address
            self._metrics.auth_failures.inc()
            self._require_few_wrong_keys(client)
            self._count_wrong_key(client)
            raise Unauthenticated("the key is not valid", hint="`bough keys create` creates a key")
        return caller

    async def require_valid(self, key: str | None) -> None:
        """Check that an open stream may continue: its key is still valid, or no key is needed. Counts no wrong keys.

        Raises:
            Unauthenticated: The key is no longer valid, or the stream has no key and now needs one.
        """
        # An open stream is not a use of its session: a page that nobody looks at must not keep it alive.
        if await self.are_needed() and (key is None or await self._verify(key, is_use=False) is None):
            raise Unauthenticated("the key is not valid", hint="`bough keys create` creates a key")

    async def open_session(self, caller: Caller) -> BrowserSession:
        """Open a session with the rights of the caller's key. Raises what `sessions.open_session` raises."""
        return await open_session(self.table.store, caller)

    async def end_session(self, id: str) -> None:
        """End a session: at once on this server, within a second on others."""
        await end_session(self.table.store, id)
        self.forget()

    def forget(self) -> None:
        """Clear the cache, so that a change of keys by this server applies at once."""
        self._verified.clear()
        self._keys_exist = False
        self._existence_read_at = None

    async def are_needed(self) -> bool:
        """Whether callers need a key; true as soon as a key exists."""
        if not self._keys_exist:
            now = self._monotonic()
            if self._existence_read_at is None or now - self._existence_read_at > _CACHE_SECONDS:
                self._keys_exist = await self.table.any()
                self._existence_read_at = now
        return self._keys_exist

    async def _verify(self, key: str, *, is_use: bool = True) -> Caller | None:
        """Return the holder of a key, at most a second old; None if the key is invalid. Records a use of it."""
        digest, now = hash_key(key), self._monotonic()
        verified = self._verified.get(digest)
        if verified is None or now - verified.looked_up_at > _CACHE_SECONDS:
            verified = _Verification(await self._look_up(key, digest), now)
            self._verified[digest] = verified
            self._verified.move_to_end(digest)
            if len(self._verified) > _MAX_CACHED:
                self._verified.popitem(last=False)
        if is_use and verified.caller is not None:
            for id in (verified.caller.key, verified.caller.session):
                if id is not None:
                    await self._touch(id, now)
        return verified.caller

    async def _look_up(self, key: str, digest: bytes) -> Caller | None:
        match = _KEY_TEXT.fullmatch(key)
        row = None if match is None else await self.table.find(match[1])
        stored_digest = _NO_DIGEST if row is None else bytes(row.digest)
        is_same = hmac.compare_digest(
            stored_digest, digest
        )  # also for an unknown id: the response time reveals nothing
        if row is None or match is None or not is_same or not row.is_valid:
            return None
        return Caller(
            tenant=row.tenant,
            key=row.parent or match[1],
            name=row.name,
            role=row.role,
            scopes=frozenset(json.loads(row.scopes)),
            session=None if row.parent is None else match[1],
        )

    async def _touch(self, id: str, now: float) -> None:
        if now - self._touched.get(id, -_TOUCH_INTERVAL_SECONDS) >= _TOUCH_INTERVAL_SECONDS:
            self._touched[id] = now
            await self.table.touch(id)

    def _require_few_wrong_keys(self, client: str) -> None:
        window_start = self._monotonic() - 60
        recent_times = [wrong_at for wrong_at in self._wrong_key_times.get(client, ()) if wrong_at > window_start]
        if len(recent_times) >= _MAX_WRONG_PER_MINUTE:
            wait_seconds = round(recent_times[0] - window_start, 1)
            details = {"limit": "wrong_keys", "retry_after_seconds": wait_seconds}
            raise LimitExceeded("too many wrong keys", hint="wait a minute", details=details)

    def _count_wrong_key(self, client: str) -> None:
        now = self._monotonic()
        recent_times = [wrong_at for wrong_at in self._wrong_key_times.pop(client, ()) if wrong_at > now - 60]
        self._wrong_key_times[client] = [*recent_times, now]
        if len(self._wrong_key_times) > _MAX_CACHED:
            self._wrong_key_times.popitem(last=False)
