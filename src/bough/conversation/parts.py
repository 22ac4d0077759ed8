"""What an open conversation is made of, and what of it is shared with its forks and closed with the last of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bough.agents.build import AgentBuilder
from bough.agents.delegation_protocol import Delegation
from bough.agents.spec import AgentSpec
from bough.conversation.log.journal import Journal
from bough.conversation.rules import RulesInForce
from bough.errors import InvalidInput, PermissionDenied
from bough.events import open_store
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.execution.named import executor_named, make_recorded_executor
from bough.settings import Settings


class Environment:
    """Counts its users. A store or an executor that the caller handed in stays the caller's to close."""

    def __init__(
        self, settings: Settings, store: EventStore, executor: CodeExecutor, delegation: Delegation | None = None
    ) -> None:
        self.settings = settings
        self.store = store
        self.executor = executor
        self.delegation = delegation
        self.pool = None if delegation is None else delegation.pool
        self._owned: list[EventStore | CodeExecutor] = []
        self._users = 0

    @classmethod
    async def of(
        cls,
        settings: Settings,
        store: EventStore | str | None,
        executor: CodeExecutor | None,
        executor_name: str,
        delegation: Delegation | None = None,
    ) -> Environment:
        """Open what is only named; `executor_name` is used where no executor is given.

        Args:
            delegation: Runs the tasks of sub-agents; its log is the store.

        Raises:
            InvalidInput: The store is another one than the log of `delegation`.
        """
        if executor is not None and not hasattr(executor, "execute"):
            type_name = type(executor).__name__
            raise InvalidInput(
                f"executor: a {type_name} executes nothing", hint="for example LocalSandboxCodeExecutor()"
            )
        if delegation is not None:
            store = _require_log(delegation, store)
        used = executor or executor_named(executor_name)
        opened = await open_store(store or settings.store) if store is None or isinstance(store, str) else store
        new = cls(settings, opened, used, delegation)
        new._owned += [opened] if opened is not store else []
        new._owned += [used] if used is not executor else []
        return new

    def narrow(self, recorded: str, *, given: CodeExecutor | None, is_foreign: bool = False) -> None:
        """Continue with the recorded executor unless a caller's own is `given`; the settings' one only if no weaker.

        A resume never widens what may happen: where the recorded executor cannot run here, its runs are refused.

        Raises:
            PermissionDenied: The one given is weaker, and the person's settings do not name one as weak.
        """
        if given is not None:
            if not is_foreign:
                self._require_no_weaker(recorded, given)
            self.executor = given
        elif recorded and recorded != self.executor.name:
            recorded_executor = make_recorded_executor(recorded)
            # Of a program's own executor a log has only the name: the sandbox is the least that stands for it.
            least = recorded_executor or executor_named("sandbox")
            if least.isolation > self.executor.isolation:
                self.executor = least
                self._owned.append(least)

    def _require_no_weaker(self, recorded: str, executor: CodeExecutor) -> None:
        if not recorded or recorded == executor.name:
            return
        least = make_recorded_executor(recorded) or executor_named("sandbox")
        allowed = min(least.isolation, executor_named(self.settings.executor).isolation)
        if executor.isolation < allowed:
            raise PermissionDenied(
                f"the conversation runs code in {recorded}, and {executor.name} is weaker",
                hint=f"set executor: {executor.name} in your settings if that is what you want, or leave executor= out",
            )

    def require_sandbox(self) -> None:
        """Take the sandbox unless what is used is no weaker: for what came from elsewhere, whoever names another."""
        sandbox = executor_named("sandbox")
        if sandbox.isolation > self.executor.isolation:
            self.executor = sandbox
            self._owned.append(sandbox)

    def retain(self) -> Environment:
        """Count one more user."""
        self._users += 1
        return self

    async def release(self) -> None:
        """Count one user less; close what is owned after the last."""
        self._users -= 1
        if self._users <= 0:
            owned, self._owned = self._owned, []
            async with AsyncExitStack() as releases:  # the last one first; each even where another fails
                for item in owned:
                    releases.push_async_callback(item.aclose)

    @asynccontextmanager
    async def close_on_failure(self) -> AsyncGenerator[None]:
        """Close what is owned if the block fails, so that a refused conversation leaves nothing open."""
        self.retain()
        try:
            yield
        except BaseException:
            await self.release()
            raise
        self._users -= 1


def _require_log(delegation: Delegation, store: EventStore | str | None) -> EventStore:
    """Return the log of a broker: a conversation and its tasks are in one."""
    if store is None or store is delegation.log:
        return delegation.log
    raise InvalidInput("the broker's tasks are in another store than the conversation", hint="give store= or broker=")


def require_delegation(spec: AgentSpec[Any], delegation: Delegation | None) -> None:
    """Check that an agent with sub-agents has somebody who runs them.

    Raises:
        InvalidInput: It has not: an agent never runs silently without its sub-agents.
    """
    if spec.sub_agents and delegation is None:
        raise InvalidInput(
            f"the agent {spec.name!r} has sub-agents, and no broker runs them",
            hint="use OrchestratorAgent, or give broker=",
        )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an open conversation is made of: handed from what opens or forks it to what uses it.

    Attributes:
        rules: Those in force: of the log, narrowed by those in memory.
    """

    journal: Journal
    record: ConversationRecord
    agent: AgentBuilder
    rules: RulesInForce
    environment: Environment

    async def aclose(self) -> None:
        """Let go of all of it, each part even where another one fails: for whoever runs it without a conversation."""
        async with AsyncExitStack() as releases:  # last in, first out
            releases.push_async_callback(self.environment.release)
            releases.push_async_callback(self.journal.aclose)
            releases.push_async_callback(self.agent.aclose)
