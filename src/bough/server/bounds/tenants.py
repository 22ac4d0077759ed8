"""The limits of tenants as they are now: read again when the operator says so, by SIGHUP."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from bough.errors import BoughError, PermissionDenied
from bough.server.auth.caller import LOCAL
from bough.server.settings import ServerSettings, TenantLimits
from bough.settings import Settings

_LOG = logging.getLogger("bough.server")


class LimitsByTenant(Protocol):
    """Says what a tenant may use."""

    def limits_of(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        ...


class TenantRules:
    """What tenants may use, as the settings said when they were read last.

    Args:
        settings: Whose home has the `server:` section.
        server: As it was read at the start.
    """

    def __init__(self, settings: Settings, server: ServerSettings) -> None:
        self._settings = settings
        self._server = server

    def limits_of(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        return self._server.limits_of(tenant)

    def require_own_model_key(self, owner: str | None, model: str | None, *, has_key: bool) -> None:
        """Check that a run asks its model by a key that it may use.

        Args:
            model: Of the run's agent; `offline` needs no key.
            has_key: Whether one was posted for it; without, the operator's is taken.

        Raises:
            PermissionDenied: The operator's keys are not for this tenant.
        """
        if not has_key and model != "offline" and self.limits_of(owner or LOCAL).models == "none":
            hint = "post one: agent.llm.api_key, or POST /api/conversations/{id}/model"
            raise PermissionDenied("the conversation has no model key of its own", hint=hint)

    def reread(self) -> None:
        """Take `limits` and `tenants` of the settings as they are now; what cannot be read changes nothing."""
        try:
            now = ServerSettings.load(self._settings)
        except BoughError as error:
            _LOG.error("the settings stay as they were: %s", error.message)
            return
        self._server = self._server.model_copy(update={"limits": now.limits, "tenants": now.tenants})
        _LOG.info("limits of tenants were read again")


@contextmanager
def reread_at_sighup(reread: Callable[[], None]) -> Generator[None]:
    """Have limits read again at SIGHUP while the block runs; it would end the process otherwise."""
    if threading.current_thread() is not threading.main_thread():  # signals reach no other thread
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reread)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
