"""The parts of an open conversation, and the environment that it shares with its forks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.agents.build import AgentBuilder
from bough.agents.config.file import find_config
from bough.agents.config.layers import list_files
from bough.agents.delegation_protocol import Delegation
from bough.agents.spec import AgentSpec
from bough.conversation.file_store import open_file_store
from bough.conversation.log.journal import Journal
from bough.conversation.rules import Rules, RulesInForce
from bough.errors import InvalidInput, PermissionDenied
from bough.events import open_store
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor, Guards
from bough.execution.named import executor_named, make_recorded_executor
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.files import FileStore


class Environment:
    """The store, executor and settings that conversations share. The last user closes the store and the executor.

    A store or an executor that the caller passed in is not closed.
    """

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
        """Return an environment. Opens the store if `store` is a URL, and `executor_name` if no executor is given.

        Args:
            delegation: Runs the tasks of sub-agents; its log is the store.

        Raises:
            InvalidInput: The store is not the log of `delegation`.
        """
        if executor is not None and not hasattr(executor, "execute"):
            type_name = type(executor).__name__
            raise InvalidInput(
                f"executor: a {type_name} executes nothing", hint="for example LocalSandboxCodeExecutor()"
            )
        if delegation is not None:
            store = _require_log(delegation, store)
        used_executor = executor or executor_named(executor_name, packages=settings.packages)
        opened_store = store
        if opened_store is None or isinstance(opened_store, str):
            opened_store = await open_store(opened_store or settings.store, keep_copy=settings.copy_before_upgrade)
        new = cls(settings, opened_store, used_executor, delegation)
        if opened_store is not store:
            new._owned.append(opened_store)
        if used_executor is not executor:
            new._owned.append(used_executor)
        return new

    @cached_property
    def file_store(self) -> FileStore | None:
        """The kept files of the store's workspaces; None for a store that keeps none."""
        return open_file_store(self.store, self.settings)

    def list_guards(self, spec: AgentSpec[Any], rules: Rules, workspace: Path) -> Guards:
        """Return the paths that tools must not change: the default names, skill folders, configurations and hooks."""
        roots = (*spec.skill_roots, *self.settings.skill_roots)
        configs = list_files(find_config(None, home=self.settings.home, cwd=workspace, env=os.environ))
        guards = Guards().extend(workspace, (*roots, *configs, *rules.hooks.guarded))
        packages = getattr(self.executor, "packages", None)
        return guards if packages is None else packages.extend_guards(guards, workspace)

    def narrow(self, recorded: str, executor: CodeExecutor | None, *, is_foreign: bool = False) -> None:
        """Choose the executor: `executor`, or else the recorded one, unless that of the settings is at least as strong.

        So opening never weakens the isolation. If the recorded executor is not available on this machine, runs fail.

        Args:
            recorded: The name of the recorded executor; empty if none is recorded.
            executor: The executor that the caller or the agent sets.
            is_foreign: Whether the log was imported. `executor` is then not compared with the recorded one.

        Raises:
            PermissionDenied: `executor` is weaker than the recorded executor, and weaker than the one in the settings.
        """
        if executor is not None:
            if not is_foreign:
                self._require_no_weaker(recorded, executor)
            self.executor = executor
        elif recorded and recorded != self.executor.name:
            recorded_executor = make_recorded_executor(recorded)
            # For an executor that a program defined, the log has only the name, not the isolation: use the sandbox.
            required = recorded_executor or executor_named("sandbox")
            if required.isolation > self.executor.isolation:
                self.executor = required
                self._owned.append(required)

    def _require_no_weaker(self, recorded: str, executor: CodeExecutor) -> None:
        """Refuse an executor that is weaker than the recorded one, and weaker than the one in the settings."""
        if not recorded or recorded == executor.name:
            return
        recorded_executor = make_recorded_executor(recorded) or executor_named("sandbox")
        least_isolation = min(recorded_executor.isolation, executor_named(self.settings.executor).isolation)
        if executor.isolation < least_isolation:
            raise PermissionDenied(
                f"the conversation runs code in {recorded}, and {executor.name} is weaker",
                hint=f"omit executor=, or set executor: {executor.name} in your settings to allow it",
            )

    def require_sandbox(self) -> None:
        """Use the sandbox unless the present executor is at least as strong. For imported conversations."""
        sandbox = executor_named("sandbox")
        if sandbox.isolation > self.executor.isolation:
            self.executor = sandbox
            self._owned.append(sandbox)

    def retain(self) -> Environment:
        """Add a user."""
        self._users += 1
        return self

    async def release(self) -> None:
        """Remove a user. After the last one, close the store and executor that were opened here."""
        self._users -= 1
        if self._users <= 0:
            owned, self._owned = self._owned, []
            file_store: FileStore | None = vars(self).pop("file_store", None)
            async with AsyncExitStack() as releases:  # last in, first out; each is closed, even if another one fails
                for item in owned:
                    releases.push_async_callback(item.aclose)
                if file_store is not None:
                    releases.push_async_callback(asyncio.to_thread, file_store.close)

    @asynccontextmanager
    async def close_on_failure(self) -> AsyncGenerator[None]:
        """If the block fails, close the store and the executor that this environment opened."""
        self.retain()
        try:
            yield
        except BaseException:
            await self.release()
            raise
        self._users -= 1


def _require_log(delegation: Delegation, store: EventStore | str | None) -> EventStore:
    """Return the log of a broker. It must be the store of the conversation too.

    Raises:
        InvalidInput: `store` is another store.
    """
    if store is None or store is delegation.log:
        return delegation.log
    raise InvalidInput(
        "the broker's tasks are in another store than the conversation", hint="give store= or broker=, not both"
    )


def require_delegation(spec: AgentSpec[Any], delegation: Delegation | None) -> None:
    """Check that an agent with sub-agents has a broker, because it must not run without its sub-agents.

    Raises:
        InvalidInput: The agent has sub-agents, and there is no broker.
    """
    if spec.sub_agents and delegation is None:
        raise InvalidInput(
            f"the agent {spec.name!r} has sub-agents, but there is no broker to run them",
            hint="use OrchestratorAgent, or give broker=",
        )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of an open conversation, as opening or forking returns them.

    Attributes:
        rules: The rules of the log, narrowed by those that the caller passed.
        is_read_only: Whether the conversation was opened without its agent and rules. Nothing may be written or run.
    """

    journal: Journal
    record: ConversationRecord
    agent: AgentBuilder
    rules: RulesInForce
    environment: Environment
    is_read_only: bool = False

    async def aclose(self) -> None:
        """Release all parts, even if one of them fails. For a caller without a conversation object."""
        async with AsyncExitStack() as releases:  # last in, first out
            releases.push_async_callback(self.environment.release)
            releases.push_async_callback(self.journal.aclose)
            releases.push_async_callback(self.agent.aclose)
