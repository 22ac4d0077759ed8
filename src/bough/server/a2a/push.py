"""Push notifications of A2A clients, stored and delivered as webhooks of kind `a2a`.

Source: the A2A protocol 1.0, section 4.3 (push notifications).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from a2a.types.a2a_pb2 import TaskPushNotificationConfig
from google.protobuf.json_format import MessageToDict, ParseDict

from bough.errors import InvalidInput
from bough.server.access import Access
from bough.server.outbound.notices import A2A
from bough.server.outbound.webhooks import Webhook, Webhooks
from bough.types import new_id

TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header
_KINDS = ("task.state",)
_MAX_ID_CHARACTERS = 200


class PushConfigs:
    """The push notification configurations of a server's tasks."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """Check that a configuration could be stored. Raises what `add` raises."""
        if len(config.id) > _MAX_ID_CHARACTERS:
            raise InvalidInput("the id of the configuration is too long", hint="leave the id out")
        if not all(value.isascii() and value.isprintable() for value in _build_headers(config).values()):
            raise InvalidInput("token and credentials are not valid in headers", hint="use printable ASCII characters")
        await self._webhooks.check(config.url)

    async def add(self, access: Access, task: str, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Store a configuration with its id or a new id, and return it.

        Raises:
            PermissionDenied: The URL is on this machine or a private network.
            InvalidInput: The id is too long, or the token or the credentials cannot be sent in headers.
            LimitExceeded: The task has the maximum number of configurations.
        """
        await self.check(config)
        stored = TaskPushNotificationConfig()
        stored.CopyFrom(config)
        stored.task_id, stored.id = task, config.id or str(new_id())
        headers = _build_headers(stored)
        options: dict[str, Any] = {"kinds": _KINDS, "kind": A2A, "target": task, "id": _webhook_id(task, stored.id)}
        secret = json.dumps({"config": MessageToDict(stored), "headers": headers})
        await self._webhooks.add(access.caller.tenant, config.url, secret=secret, **options)
        return stored

    async def list(self, access: Access, task: str) -> list[TaskPushNotificationConfig]:
        """Return the configurations of a task, oldest first; with only id and URL if a secret cannot be decrypted."""
        hooks = await self._webhooks.list(access.caller.tenant, kind=A2A, target=task)
        return [_read_config(hook) for hook in hooks]

    async def remove(self, access: Access, task: str, id: str) -> None:
        """Delete a configuration; does nothing if it does not exist."""
        if any(config.id == id for config in await self.list(access, task)):
            await self._webhooks.remove(access.caller.tenant, _webhook_id(task, id))


def _webhook_id(task: str, id: str) -> str:
    return f"{task}/{id}"


def _build_headers(config: TaskPushNotificationConfig) -> Mapping[str, str]:
    headers = {TOKEN_HEADER: config.token} if config.token else {}
    if config.HasField("authentication"):
        headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _read_config(hook: Webhook) -> TaskPushNotificationConfig:
    if not hook.secret:
        task = hook.target or ""
        return TaskPushNotificationConfig(task_id=task, id=hook.id.removeprefix(f"{task}/"), url=hook.url)
    return ParseDict(json.loads(hook.secret)["config"], TaskPushNotificationConfig())
