"""The limits of tenants, which SIGHUP reloads, and the check that a folder belongs to a tenant."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bough.errors import BoughError, PermissionDenied
from bough.server.auth.caller import LOCAL
from bough.server.settings import ServerSettings, TenantLimits
from bough.settings import Settings

_LOG = logging.getLogger("bough.server")


class LimitsByTenant(Protocol):
    """Provides the limits of tenants."""

    def limits_for(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        ...

    @property
    def bounds_any_key(self) -> bool:
        """Whether the keys of any tenant have quotas."""
        ...


class TenantRules:
    """The limits of tenants, as last loaded from the settings.

    Args:
        settings: Settings of the home with the `server:` section.
        server: The section as loaded at the start.
    """

    def __init__(self, settings: Settings, server: ServerSettings) -> None:
        self._settings = settings
        self._server = server

    def limits_for(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        return self._server.limits_for(tenant)

    @property
    def bounds_any_key(self) -> bool:
        """Whether the keys of any tenant have quotas."""
        return self._server.bounds_any_key

    def require_workspace(self, owner: str | None, folder: str | Path) -> None:
        """Check that the working folder of a run still belongs to its tenant.

        Raises:
            PermissionDenied: A link leads out of the tenant's folder.
        """
        home, tenant = self._settings.home, owner or LOCAL
        require_inside(folder, tenant=tenant, root=self._server.folder_for(tenant, home), home=home)

    def require_own_model_key(self, owner: str | None, model: str | None, *, has_key: bool) -> None:
        """Check that a run does not use the operator's model key if its tenant may not.

        Args:
            model: The model of the run's agent; `offline` needs no key.
            has_key: Whether a model key was posted for the conversation; otherwise the run uses the operator's.

        Raises:
            PermissionDenied: The tenant may not use the operator's keys.
        """
        if not has_key and model != "offline" and self.limits_for(owner or LOCAL).models == "none":
            hint = "post a model key: agent.llm.api_key, or POST /api/conversations/{id}/model"
            raise PermissionDenied("the tenant may not use the operator's model key", hint=hint)

    def reload(self) -> None:
        """Load `limits` and `tenants` of the settings again; keep the current ones if the settings are invalid."""
        try:
            loaded = ServerSettings.load(self._settings)
        except BoughError as error:
            _LOG.error("limits of tenants were not reloaded: %s", error.message)
            return
        self._server = self._server.model_copy(update={"limits": loaded.limits, "tenants": loaded.tenants})
        _LOG.info("limits of tenants were reloaded")


@contextmanager
def reload_at_sighup(reload: Callable[[], None]) -> Generator[None]:
    """Call `reload` at SIGHUP while the block runs; without a handler the signal would end the process."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def require_inside(folder: str | Path, *, tenant: str, root: Path, home: Path) -> Path:
    """Return the real path of a conversation's folder. A program may have replaced the folder by a link.

    Args:
        root: The folder that contains all files of the tenant.
        home: bough's home; its folder `workspaces` contains the copies that forks work in.

    Raises:
        PermissionDenied: A link in the path leads out of the tenant's folder.
    """
    path, real, top = os.path.normpath(folder), os.path.realpath(folder), os.path.realpath(root)
    # A path without links is still the folder that was checked when the conversation was created.
    if is_below(real, top) or real == path:
        return Path(real)
    copies = os.path.realpath(home / "workspaces")
    # A link above `workspaces` is allowed, but the copy itself must not be one: the real path must end with its name.
    if os.path.realpath(os.path.dirname(path)) == copies and os.path.join(copies, os.path.basename(path)) == real:
        return Path(real)
    if tenant == LOCAL and not is_below(path, top) and not is_below(path, os.path.normpath(root)):
        return Path(real)  # a folder of the user, in which the command line works
    raise PermissionDenied(
        "the workspace of the conversation is a link that leads out of the tenant's folder",
        hint="replace the link by a folder, or start a conversation in another folder",
    )


def is_below(path: str, top: str) -> bool:
    """Whether a normalized path is a folder or lies below it."""
    return path == top or path.startswith(top.rstrip(os.sep) + os.sep)
