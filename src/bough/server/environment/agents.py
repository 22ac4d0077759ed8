"""The agents of a server by name, and agents that a body describes as data, limited to the rights of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from bough.agents.models.resolve import OFFLINE, takes_base_url
from bough.agents.spec import AgentSpec, spec_from_data
from bough.connect.address import check_address
from bough.conversation import State
from bough.conversation.agent import read_recorded_spec, settle_spec
from bough.conversation.fork.model_key import MODEL_KEY
from bough.errors import InvalidInput, PermissionDenied
from bough.server.auth.caller import LOCAL, Caller
from bough.server.bodies.agents import AgentForm
from bough.server.bounds.tenants import LimitsByTenant
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.tasks.agents import find_for_record
from bough.types import JsonObject

DEFAULT = "default"
_ACCESS_LEVELS = ("none", "read", "write", "run")
_PATH_FIELDS: Mapping[str, str] = {
    "system_prompt_path": "send the text itself as agent.system_prompt",
    "skill_roots": "name an agent that the operator registered with these skills",
}
"""Fields of an agent that name files of this machine, which only the operator may set; each with a hint."""


class AgentCatalogue:
    """The registered agents, and `default`, the agent that `bough run` uses."""

    def __init__(
        self, settings: Settings, server: ServerSettings, registered: Mapping[str, AgentSpec], rules: LimitsByTenant
    ) -> None:
        self._settings = settings
        self._server = server
        self._rules = rules
        self._registered = dict(registered)

    def names(self) -> list[str]:
        """Return the names of all agents, sorted."""
        return sorted({DEFAULT, *self._registered})

    def find_named(self, name: str) -> AgentSpec:
        """Return a registered agent.

        Raises:
            InvalidInput: No agent has this name; the hint has the nearest name.
        """
        if name in self._registered:
            return self._registered[name]
        if name == DEFAULT:
            return self._default()
        near = get_close_matches(name, self.names(), 1)
        hint = f"did you mean `{near[0]}`?" if near else f"known agents: {', '.join(self.names())}"
        raise InvalidInput("no agent has that name", hint=hint)

    def read_recorded(self, state: State) -> AgentSpec:
        """Return the agent of a conversation: its recorded data, and the code of the registered agent with its name.

        Raises:
            InvalidInput: The agent needs code, which the log only names, and no agent with its name is registered.
        """
        agent = find_for_record(state, self._registered, self._settings)
        if agent is not None:
            return agent
        try:
            return read_recorded_spec(state)
        except InvalidInput as error:
            hint = f"register an agent named {state.agent.get('name')!r} on the server, or fork with another agent"
            raise InvalidInput(error.message, hint=hint, details=error.details) from None

    def agent_for(self, caller: Caller, agent: str | AgentForm | None) -> AgentSpec:
        """Return the agent that a body names or describes, with workspace tools no wider than the tenant's.

        Raises:
            InvalidInput: The name is unknown, or a value is invalid.
            PermissionDenied: The body sets a field that only an admin may set.
        """
        if not isinstance(agent, AgentForm):
            return self.narrow(caller, self.find_named(agent or DEFAULT))
        self.require_allowed_fields(caller, agent)
        fields = agent.model_dump(exclude_none=True, exclude_unset=True, exclude={"api_key"})
        default = self._default()
        defaults: dict[str, Any] = {"discover_skills": True, "workspace_access": default.workspace_access}
        if "model" not in fields:  # the default model is called at its own address
            defaults |= {"base_url": default.base_url}
        spec = spec_from_data(defaults | fields, base=self._settings.home, subject="agent")
        if "model" not in fields:
            spec = spec.model_copy(update={"model": default.model, "settings": default.settings})
        return self.narrow(caller, spec)

    def require_allowed_fields(self, caller: Caller, agent: AgentForm) -> None:
        """Check that the caller may set every field that an agent sets.

        Raises:
            PermissionDenied: Only the operator, or an admin, may set a field; the message names it.
        """
        if not caller.is_operator:
            for name, hint in _PATH_FIELDS.items():
                if getattr(agent, name) is not None:
                    raise PermissionDenied(f"agent.{name}: only the operator may name files of the server", hint=hint)
        self.require_base_url(caller, agent.base_url)

    def require_base_url(self, caller: Caller, base_url: str | None, *, field: str = "agent.base_url") -> None:
        """Check that a caller may use an address for its models.

        Args:
            field: The field of the body with the address.

        Raises:
            PermissionDenied: The address is not in `server.models`, and the caller is not an admin.
        """
        if base_url is not None and base_url not in self._server.models and not caller.may("admin"):
            hint = "the operator can list it in server.models"
            raise PermissionDenied(f"{field} needs the role admin", hint=hint)

    async def require_address(
        self, caller: Caller, base_url: str | None, *, has_key: bool, field: str = "agent.base_url"
    ) -> None:
        """Check an address that a tenant set: it must be public, and have its own key instead of the operator's.

        Args:
            has_key: Whether a model's key was posted for it.
            field: The field of the body with the address.

        Raises:
            PermissionDenied: It leads to this machine or a private network, or no key was posted for it.
            InvalidInput: It is not an HTTP address.
        """
        operator_addresses = {
            self._settings.base_url,
            *self._server.models,
            *(spec.base_url for spec in self._registered.values()),
            self._default().base_url,
        }
        if base_url is None or caller.tenant == LOCAL or base_url in operator_addresses:
            return
        if not has_key:
            hint = "post api_key with it: the operator's keys are sent to the operator's addresses only"
            raise PermissionDenied(f"{field} needs a model key of its own", hint=hint)
        try:
            await check_address(base_url, self._server.webhook_networks)
        except (InvalidInput, PermissionDenied) as error:
            raise type(error)(error.message.replace("url", field, 1), hint=error.hint) from None

    async def require_recorded_address(self, caller: Caller, state: State) -> None:
        """Check that a caller may use the recorded address of an imported conversation's model.

        Raises:
            PermissionDenied: The caller may not use the address.
        """
        address: str | None = state.agent.get("base_url")
        if address is None or caller.is_operator or address in (self._settings.base_url, *self._server.models):
            return
        registered = find_for_record(state, self._registered, self._settings)
        if registered is not None and registered.base_url == address:
            return
        try:
            self.require_base_url(caller, address)
            has_key = MODEL_KEY in (state.policies.get("sealed") or {})
            await self.require_address(caller, address, has_key=has_key)
        except (InvalidInput, PermissionDenied) as error:
            raise PermissionDenied(
                f"the model of this imported conversation is at {address}: {error.message}",
                hint="choose another model with POST {id}/model",
                details={"base_url": address},
            ) from None

    def narrow(self, caller: Caller, spec: AgentSpec) -> AgentSpec:
        """Return the agent with workspace tools no wider than the tenant's."""
        max_access = self._rules.limits_for(caller.tenant).access
        if _ACCESS_LEVELS.index(spec.workspace_access) <= _ACCESS_LEVELS.index(max_access):
            return spec
        return spec.model_copy(update={"workspace_access": max_access})

    def narrow_recorded(self, caller: Caller, recorded: JsonObject) -> JsonObject:
        """Return the agent recorded in an imported log, with only the fields that a caller may set.

        Paths that only the operator may name are removed, and workspace tools are narrowed to the tenant's. The
        model's address is kept if its provider takes one, because the provider's default address would be called
        otherwise; `require_recorded_address` checks it before use.
        """
        fields = dict(recorded)
        if not caller.is_operator:
            fields = {name: value for name, value in fields.items() if name not in _PATH_FIELDS}
            if fields.get("base_url") not in self._server.models and not takes_base_url(fields.get("model")):
                fields.pop("base_url", None)
        max_access = self._rules.limits_for(caller.tenant).access
        allowed = _ACCESS_LEVELS[: _ACCESS_LEVELS.index(max_access) + 1]
        access = fields.get("workspace_access")
        if access is not None and access not in allowed:
            fields["workspace_access"] = max_access
        return fields

    def _default(self) -> AgentSpec:
        if DEFAULT in self._registered:
            return self._registered[DEFAULT]
        spec = settle_spec(AgentSpec(discover_skills=True), self._settings)
        return spec.model_copy(update={"workspace_access": "none" if spec.model == OFFLINE else "run"})
