"""Routes for the webhooks of the caller's tenant."""

from __future__ import annotations

from typing import Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field

from bough.server.access import WebhookAdmin
from bough.server.bodies.base import Form, Stamp, Success, stamp
from bough.server.bounds.etag import IdempotencyKey, id_from_key, mark_replayed
from bough.server.outbound.notices import KINDS
from bough.server.outbound.webhooks import Webhook
from bough.server.requests.routing import router

routes = router("Webhooks")

Kind = Literal["conversation.status", "conversation.waiting", "conversation.deleted", "task.state", "run.finished"]


class WebhookForm(Form):
    """The URL of a webhook, and the kinds of notices it receives; all kinds by default."""

    url: str = Field(min_length=1, max_length=2000)
    kinds: list[Kind] | None = Field(default=None, min_length=1, max_length=20)


class ListedWebhook(BaseModel):
    """A webhook without its secret. One that failed for a day is inactive until it accepts a test."""

    id: str
    url: str
    kinds: list[str]
    active: bool
    failing_since: Stamp | None

    @classmethod
    def of(cls, hook: Webhook) -> ListedWebhook:
        """Return the response for a webhook."""
        since = None if hook.failing_since is None else stamp(hook.failing_since)
        return cls(id=hook.id, url=hook.url, kinds=list(hook.kinds), active=hook.active, failing_since=since)


class MadeWebhook(ListedWebhook):
    """A new webhook. Its secret is shown only once."""

    secret: str


@routes.post("/api/webhooks", status_code=201, responses={200: {"model": MadeWebhook}})
async def create_webhook(
    body: WebhookForm,
    access: WebhookAdmin,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> MadeWebhook:
    """Create a webhook, to which the tenant's notices are sent. Its secret signs them."""
    id = id_from_key(access.caller, request, idempotency_key)
    options = {"kinds": body.kinds or KINDS, "id": None if id is None else str(id)}
    hook, is_new = await access.services.webhooks.add(access.caller.tenant, body.url, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    if not is_new:
        mark_replayed(response)
    return MadeWebhook(**ListedWebhook.of(hook).model_dump(), secret=hook.secret)


@routes.get("/api/webhooks")
async def list_webhooks(access: WebhookAdmin) -> list[ListedWebhook]:
    """Return the webhooks of the tenant, oldest first."""
    return [ListedWebhook.of(hook) for hook in await access.services.webhooks.list(access.caller.tenant)]


@routes.delete("/api/webhooks/{webhook}")
async def delete_webhook(webhook: str, access: WebhookAdmin) -> Success:
    """Delete a webhook and its pending deliveries."""
    await access.services.webhooks.remove(access.caller.tenant, webhook)
    return Success()


@routes.post("/api/webhooks/{webhook}/test")
async def test_webhook(webhook: str, access: WebhookAdmin) -> Success:
    """Send a test notice to a webhook."""
    await access.services.webhooks.test(access.caller.tenant, webhook)
    return Success()
