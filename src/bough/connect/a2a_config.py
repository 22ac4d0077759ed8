"""How an agent reaches a remote agent that speaks A2A.

Source: seed 004 (`a2a_clients` of an agent).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bough.errors import InvalidInput


class A2AClientConfig(BaseModel):
    """One remote agent.

    Attributes:
        url: Where it is; its card is at `/.well-known/agent-card.json` below it.
        name: How it is called in messages and records.
        timeout: Seconds for one task, from its sending to its end.
        poll_interval: Seconds between two looks at a task.
        max_retries: How often a request is repeated after a failed connection, 429, 502, 503 or 504.
        retry_delay: Seconds before the first repetition; each later one waits twice as long.
        bearer_token: Sent as `Authorization`; never recorded or shown.
        allow_hosts: Hosts besides that of `url` to which requests may go if its card names them. Where a card names
            other hosts only, requests go to `url`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    name: str = ""
    timeout: float = Field(default=300, gt=0)
    poll_interval: float = Field(default=1.0, gt=0)
    max_retries: int = Field(default=3, ge=0)
    retry_delay: float = Field(default=1.0, ge=0)
    bearer_token: str | None = Field(default=None, repr=False)
    allow_hosts: tuple[str, ...] = ()

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r} is not an address of an agent", hint="http://… or https://…")
        return url
