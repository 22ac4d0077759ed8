"""The client of `bough acp`, and the setup of its sessions. Imports nothing that runs a conversation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from acp import schema
from acp.connection import Connection
from acp.meta import CLIENT_METHODS
from pydantic import BaseModel

from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation.rules import GivenRules
    from bough.events import StoreAdmin
    from bough.tasks import TaskBroker


class Editor:
    """The connected client: its capabilities, and sending of updates and requests to it.

    Attributes:
        capabilities: The capabilities that the client declared in `initialize`; None before.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.capabilities: schema.ClientCapabilities | None = None

    @property
    def shows_forms(self) -> bool:
        """Whether the client can show a form and return what a person entered."""
        elicitation = None if self.capabilities is None else self.capabilities.elicitation
        return elicitation is not None and elicitation.form is not None

    async def update(self, session: str, update: BaseModel) -> None:
        """Send an update of a session. Returns when it is written.

        Raises:
            ConnectionError: The client has gone.
        """
        content = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        await self._connection.send_notification(
            CLIENT_METHODS["session_update"], {"sessionId": session, "update": content}
        )

    async def ask(self, method: str, params: BaseModel | JsonObject) -> JsonObject:
        """Send a request, and wait for its answer without a time limit. {} if the answer is not an object.

        Args:
            method: A key of `CLIENT_METHODS`.

        Raises:
            ConnectionError: The client has gone.
            RequestError: The client answers with an error.
        """
        if isinstance(params, BaseModel):
            params = params.model_dump(mode="json", by_alias=True, exclude_none=True)
        answer: Any = await self._connection.send_request(CLIENT_METHODS[method], params)
        return cast("JsonObject", answer) if isinstance(answer, dict) else {}


@dataclass(frozen=True, kw_only=True)
class EditorSetup:
    """The settings and functions that create the sessions of an editor.

    Attributes:
        open_store: Opens the store of the conversations.
        open_broker: Opens the broker that runs the tasks of sub-agents.
        make_agent: Returns the agent of a new session.
        make_rules: Returns the rules of a session in a folder: for a new session, the defaults of its agent. The agent
            is None for a recorded session, whose recorded rules apply.
        policy: The policy that no mode of a session may be wider than; None without one.
    """

    settings: Settings
    open_store: Callable[[], AbstractAsyncContextManager[StoreAdmin]]
    open_broker: Callable[[StoreAdmin], AbstractAsyncContextManager[TaskBroker]]
    make_agent: Callable[[], AgentSpec]
    make_rules: Callable[[Path, AgentSpec | None], GivenRules]
    policy: str | None = None
