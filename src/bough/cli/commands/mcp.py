"""`bough mcp`: serves conversations as tools and resources of an MCP client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import agent_file, options
from bough.cli.rule_options import RuleOptions
from bough.errors import InvalidInput, NotFound
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation.rules import GivenRules
    from bough.server.mcp.tools import ServedTool


OfferedAgents = Annotated[
    list[str] | None, typer.Option("--agent", metavar="NAME", help="Offer only delegation to this agent; repeatable.")
]

Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="Use this agent server instead of this machine.")
]


def mcp(
    rules: RuleOptions,
    agent: OfferedAgents = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    executor: options.Executor = None,
    home: options.Home = None,
    store: options.Store = None,
    server: Server = None,
) -> None:
    """Serve conversations to an MCP client over stdio.

    The client starts `bough mcp` and stops it by closing its streams. It offers the agents in config.yaml and the
    default agent; calls that need approval wait for the tool `decide`. With --agent, it offers only to delegate tasks
    to these agents. With --server, it offers the agents and conversations of an agent server; BOUGH_API_KEY is the key.
    """
    if server is not None:
        local_options: Any = {"--agent": agent, "--model": model, "--base-url": base_url, "--executor": executor}
        local_options |= {"--home": home, "--store": store}
        for name, value in local_options.items():
            if value:
                raise InvalidInput(
                    f"{name} cannot be combined with --server", hint=f"omit {name}: the server has its own"
                )
        from bough.server.mcp.relay import relay_stdio

        return asyncio.run(relay_stdio(server))
    settings = options.load_settings(home, store, model=model, base_url=base_url, executor=executor)
    asyncio.run(_serve(settings, rules, agent or []))


async def _serve(settings: Settings, rules: RuleOptions, offered: list[str]) -> None:
    from bough.agents.config.agents import AgentConfig
    from bough.cli.transcript import as_markdown
    from bough.server.mcp.conversations import LocalConversations
    from bough.server.mcp.resources import ServedResources
    from bough.server.mcp.serve import Served, serve_stdio
    from bough.server.mcp.tools import TOOLS
    from bough.tasks import TaskBroker
    from bough.tasks.stores.backends import tasks_in

    names = list(AgentConfig.load(settings=settings).names)
    unknown = [name for name in offered if name not in names]
    if unknown:
        raise NotFound(f"no agent named {unknown[0]!r:.80}", hint=f"there are: {', '.join(names) or 'none'}")

    def make_agent(name: str | None) -> AgentSpec:
        # Clients may name agents, but not files: with a path they could read any file that this process can read.
        if name is not None and name not in (offered or names):
            raise NotFound(f"no agent named {name!r:.80}", hint=f"there are: {', '.join(names) or 'none'}")
        return agent_file.resolve_agent(None if name is None else Path(name), settings)

    def make_rules(workspace: Path) -> GivenRules:
        return rules.make_rules(settings, workspace)

    async with (
        options.open_settings_store(settings) as store,
        TaskBroker(tasks_in(store), settings=settings) as broker,
    ):
        shared_fields: Any = {"settings": settings, "store": store, "agents": make_agent}
        served = Served(
            conversations=LocalConversations(broker=broker, rules=make_rules, **shared_fields),
            resources=ServedResources(workspace=Path.cwd(), agent_names=names, transcript=as_markdown, **shared_fields),
            agents=offered or names,
        )
        await serve_stdio(served, tools=TOOLS if not offered else _tools_for_tasks(TOOLS))


def _tools_for_tasks(tools: Mapping[str, ServedTool]) -> dict[str, ServedTool]:
    """Return the tools for tasks that are delegated to named agents."""
    return {name: tool for name, tool in tools.items() if name in ("delegate", "get_task", "cancel_task")}
