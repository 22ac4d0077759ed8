"""`bough mcp`: conversations as the tools and resources of an MCP client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from bough.cli import options
from bough.cli.agent_file import agent_of
from bough.cli.rules import RuleOptions
from bough.config import Settings
from bough.errors import NotFound

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation.rules import GivenRules


def mcp(
    rules: RuleOptions,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    executor: options.Executor = None,
    home: options.Home = None,
    store: options.Store = None,
) -> None:
    """Serve conversations to an MCP client over stdio.

    The client starts it, for example with the command `bough mcp`, and ends it by closing its streams. Agents are those
    of config.yaml and the default one; calls that need an approval wait for the tool `decide`.
    """
    settings = options.settings_of(home, store, model=model, base_url=base_url, executor=executor)
    asyncio.run(_serve(settings, rules))


async def _serve(settings: Settings, rules: RuleOptions) -> None:
    from bough.agents.config.agents import AgentConfig
    from bough.cli.transcript import as_markdown
    from bough.server.mcp.conversations import LocalConversations
    from bough.server.mcp.resources import ServedResources
    from bough.server.mcp.serve import serve_stdio

    names = AgentConfig.load(settings=settings).names

    def make_agent(name: str | None) -> AgentSpec:
        # A client names agents and never files: a path would read whatever the server may read.
        if name is not None and name not in names:
            raise NotFound(f"no agent is called {name!r:.80}", hint=f"there are: {', '.join(names) or 'none'}")
        return agent_of(None if name is None else Path(name), settings)

    def make_rules(workspace: Path) -> GivenRules:
        return rules.given(settings, workspace)

    async with options.opened(settings) as opened:
        await serve_stdio(
            LocalConversations(settings=settings, store=opened, agents=make_agent, rules=make_rules),
            ServedResources(
                settings=settings,
                store=opened,
                workspace=Path.cwd(),
                agents=make_agent,
                agent_names=names,
                transcript=as_markdown,
            ),
        )
