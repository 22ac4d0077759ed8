"""The operator's settings of a server, from `server:` in the home's `bough.yaml`, `BOUGH_SERVER_*` and options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bough.errors import InvalidInput
from bough.settings import Settings

MEBIBYTE = 1 << 20


class TenantLimits(BaseModel):
    """The limits of one tenant.

    Attributes:
        runs: Maximum number of concurrent runs.
        queued_runs: Maximum number of runs that wait for others to end; further runs are refused.
        requests_per_second: For all keys together; `key_requests_per_second` for each. Bursts may be twice as large.
        streams: Open streams and sockets of all keys together; `key_streams` for each key.
        conversations: Maximum number of conversations; lists scan all of them.
        access: The widest workspace access that the tenant's agents may have.
        models: Whether runs may use the operator's model keys; `none` allows only keys that the tenant posted.
        tokens_a_day: Input and output tokens per UTC day; None for no limit. `usd_a_day` likewise.
        key_tokens_a_day: Tokens per UTC day of runs and questions requested by one key; `key_usd_a_day` likewise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: int = Field(default=20, ge=0)
    queued_runs: int = Field(default=100, ge=0)
    requests_per_second: float = Field(default=200, gt=0)
    key_requests_per_second: float = Field(default=50, gt=0)
    streams: int = Field(default=1000, ge=0)
    key_streams: int = Field(default=100, ge=0)
    conversations: int = Field(default=100_000, ge=0)
    models: Literal["all", "none"] = "all"
    access: Literal["none", "read", "write", "run"] = "run"
    tokens_a_day: int | None = Field(default=None, ge=0)
    usd_a_day: float | None = Field(default=None, ge=0)
    key_tokens_a_day: int | None = Field(default=None, ge=0)
    key_usd_a_day: float | None = Field(default=None, ge=0)

    @property
    def bounds_keys(self) -> bool:
        """Whether each key of the tenant has a quota."""
        return self.key_tokens_a_day is not None or self.key_usd_a_day is not None


class ServerSettings(BaseModel):
    """The settings of a server, which are never read from a project's folder.

    Attributes:
        hosts: Additional names accepted in the header `Host`.
        origins: Allowed origins in addition to the server's.
        trusted_proxies: Networks whose `X-Forwarded-*` headers are trusted.
        root: The parent folder of the tenants' folders; None for `workspaces` in the home.
        read_seconds: Maximum pause while a client sends a request; `send_seconds`: while it receives a response.
        body_seconds: Maximum time for receiving a whole body.
        connections: Maximum number of open connections; one address may have three quarters of them.
        keep_alive_seconds: Maximum idle time of a connection between two requests; clients should use less.
        runs: Whether tasks run in this process or in workers.
        models: Base URLs of models that any caller may choose.
        webhook_networks: Private networks that webhooks and push notifications may call.
        public_card: Whether the cards of agents can be read without a key.
        limits: The limits of each tenant that is not in `tenants`. Both fields are reloaded at SIGHUP.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    root: Path | None = None
    runs: Literal["here", "workers"] = "here"
    concurrency: int = Field(default=10, ge=1)
    cache_bytes: int = Field(default=256 * MEBIBYTE, ge=0)
    body_bytes: int = Field(default=10 * MEBIBYTE, ge=1024)
    upload_bytes: int = Field(default=100 * MEBIBYTE, ge=1024)
    message_bytes: int = Field(default=MEBIBYTE, ge=1024)
    read_seconds: float = Field(default=30, gt=0)
    send_seconds: float = Field(default=30, gt=0)
    body_seconds: float = Field(default=600, gt=0)
    connections: int = Field(default=10_000, ge=2)
    keep_alive_seconds: int = Field(default=75, ge=1)
    heartbeat_seconds: float = Field(default=15, gt=0)
    shutdown_seconds: float = Field(default=20, ge=0)
    models: tuple[str, ...] = ()
    webhook_networks: tuple[str, ...] = ()
    public_card: bool = False
    limits: TenantLimits = TenantLimits()
    tenants: dict[str, TenantLimits] = Field(default={})

    @classmethod
    def load(cls, settings: Settings, *, env: Mapping[str, str] | None = None, **options: Any) -> ServerSettings:
        """Return the settings from `options`, `BOUGH_SERVER_*`, the home's `bough.yaml` and defaults, in this order.

        Raises:
            InvalidInput: A key is unknown or a value has the wrong shape.
        """
        env = os.environ if env is None else env
        values = _read_file(settings.home / "bough.yaml") | _read_env(env)
        values |= {key: value for key, value in options.items() if value is not None}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _explain(error) from error

    def limits_for(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        return self.tenants.get(tenant, self.limits)

    @property
    def bounds_any_key(self) -> bool:
        """Whether the keys of any tenant have quotas."""
        return any(limits.bounds_keys for limits in (self.limits, *self.tenants.values()))

    def folder_for(self, tenant: str, home: Path) -> Path:
        """Return the folder of a tenant's files."""
        return (self.root or home / "workspaces") / tenant


def _read_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="fix the file or its permissions") from error
    section: Any = data.get("server", {}) if isinstance(data, dict) else {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(section, dict):
        raise InvalidInput(
            f"{path}: `server` must contain `key: value` lines", hint=f"known keys: {_list_known_keys()}"
        )
    return {str(key): value for key, value in section.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _read_env(env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in ServerSettings.model_fields.items():
        value = env.get(f"BOUGH_SERVER_{name.upper()}")
        if value:
            is_list = "tuple" in str(field.annotation)
            values[name] = [item for item in value.split(",") if item] if is_list else value
    return values


def _explain(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    matches = get_close_matches(name, ServerSettings.model_fields, 1)
    hint = f"did you mean `{matches[0]}`?" if matches and matches[0] != name else f"known keys: {_list_known_keys()}"
    return InvalidInput(f"server setting `{name}`: {first['msg']}", hint=hint)


def _list_known_keys() -> str:
    return ", ".join(sorted(ServerSettings.model_fields))
