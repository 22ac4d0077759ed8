"""Configuration of the MCP servers and the remote A2A agents that an agent uses.

Source: agentic_patterns `MCPClientConfig`, `a2a_clients` of an agent.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bough.errors import InvalidInput


class MCPClientConfig(BaseModel):
    """One MCP server; exactly one of `url` and `command` is set.

    Attributes:
        name: Its name in messages and records.
        url: The address of a server that uses streamable HTTP.
        command: A program that uses its standard streams. It is started with `args` in the folder `cwd`.
        env: Environment variables of the program, in addition to `PATH` and similar ones. It gets no others.
        headers: Sent with every request to `url`.
        bearer_token: Sent as `Authorization`; never recorded or shown.
        read_timeout: Seconds for one call.
        start_timeout: Seconds within which it must respond to the first request.
        tool_prefix: Prefix for the names of its tools, to which `_` is added.
        allowed_tools: The tools to offer, by their unprefixed names; None for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    type: Literal["client"] = "client"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    bearer_token: str | None = Field(default=None, repr=False)
    read_timeout: float = Field(default=60, gt=0)
    start_timeout: float = Field(default=30, gt=0)
    tool_prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,32}$")
    allowed_tools: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check_transport(self) -> MCPClientConfig:
        if (self.url is None) == (self.command is None):
            raise InvalidInput(
                f"an MCP server{f' ({self.name})' if self.name else ''} needs exactly one of url and command",
                hint="url for streamable HTTP, command for a program that is started",
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InvalidInput(f"{self.url!r} is not an address of an MCP server", hint="http://… or https://…")
        return self


class A2AClientConfig(BaseModel):
    """One remote agent.

    Attributes:
        url: Its address; its card is at `/.well-known/agent-card.json` below it.
        name: Its name in messages and records.
        timeout: Seconds for one task, from the request to its end.
        poll_interval: Seconds between two polls of a task.
        max_retries: How often a request is retried after a failed connection or one of the statuses 429, 502, 503, 504.
        retry_delay: Seconds before the first retry; doubled for each further one.
        bearer_token: Sent as `Authorization`; never recorded or shown.
        allow_hosts: Further hosts, besides the host of `url`, to which requests may be sent if the card names them. If
            the card names no allowed host, requests are sent to `url`.
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
    def _check_address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r} is not an address of an agent", hint="http://… or https://…")
        return url
