"""`bough acp`: conversations in an editor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from bough.cli import agent_file, options
from bough.cli.rule_options import RuleOptions

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation.rules import GivenRules
    from bough.events import StoreAdmin
    from bough.tasks import TaskBroker


def acp(
    rules: RuleOptions,
    agent: options.Agent = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    executor: options.Executor = None,
    skills: options.SkillRoots = None,
    home: options.Home = None,
    store: options.Store = None,
) -> None:
    """Serve conversations to an editor over the Agent Client Protocol.

    The editor starts `bough acp` and stops it by closing its streams. A session is a conversation of the store:
    `bough resume`, `bough web` and the editor open the same ones. With --policy, no mode of the editor asks less often.
    """
    from bough.guard import policy_named

    settings = options.load_settings(home, store, model=model, base_url=base_url, executor=executor)
    policy = settings.policy if rules.policy is None else rules.policy
    if policy is not None:
        policy_named(policy)  # an editor shows what a process prints when it starts
    roots = options.parse_skill_roots(skills)

    def make_agent() -> AgentSpec:
        return agent_file.resolve_agent(agent, settings, skill_roots=roots)

    def make_rules(workspace: Path, spec: AgentSpec | None) -> GivenRules:
        return rules.make_rules(settings, workspace, may_write=spec is not None and agent_file.may_write(spec))

    def open_broker(opened: StoreAdmin) -> TaskBroker:
        from bough.tasks import TaskBroker
        from bough.tasks.stores.backends import tasks_in

        return TaskBroker(tasks_in(opened), settings=settings)

    from bough.server.acp.editor import EditorSetup
    from bough.server.acp.serve import serve_stdio

    setup = EditorSetup(
        settings=settings,
        open_store=lambda: options.open_settings_store(settings),
        open_broker=open_broker,
        make_agent=make_agent,
        make_rules=make_rules,
        policy=policy,
    )
    asyncio.run(serve_stdio(setup))
