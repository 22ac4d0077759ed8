"""`bough agents`: shows the agents in config.yaml, and checks the file."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.complete import complete_agents
from bough.cli.render import Report
from bough.cli.text import Block, Span, Table, line, paragraph
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.agents.config.agents import AgentConfig

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file. Default: the nearest config.yaml.")
]


def list_(
    config: Config = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """List the agents in config.yaml."""
    agent_config = _load(config, home, store)
    agents = [describe_agent(agent_config, name) for name in agent_config.names]
    file = str(agent_config.file.path) if agent_config.file.path else None
    rows: tuple[tuple[Span, ...], ...] = tuple(
        ((agent["name"], "id"), (agent["model"] or "", ""), (agent["description"], "")) for agent in agents
    )
    blocks: list[Block] = [line(("no agents: write a config.yaml with `agents:`", "dim"))]
    if rows:
        blocks = [Table(head=("name", "model", "description"), rows=rows, flexible=(2,), drop=(1,), last_flexible=0)]
    return Report(command="agents list", data={"agents": agents, "file": file}, blocks=blocks)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an agent.", autocompletion=complete_agents)],
    config: Config = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show an agent, what it uses and its sub-agents."""
    agent_config = _load(config, home, store)
    agent_config.entry(name)
    return Report(
        command="agents show", data=describe_agent(agent_config, name), blocks=list(_tree(agent_config, name, 0))
    )


def check(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Agent to check. Default: all.", autocompletion=complete_agents)
    ] = None,
    config: Config = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Find mistakes in config.yaml and missing requirements of its agents. Exit code 1 if there are any."""
    from bough.agents.config.agents import find_faults

    faults = find_faults(config, settings=options.load_settings(home, store), only=name)
    data = [{"message": fault.message, "hint": fault.hint, **fault.details} for fault in faults]
    blocks: list[Block] = [line((fault.message, "bad"), (f"  {fault.hint}", "dim")) for fault in faults]
    return Report(
        command="agents check",
        data={"faults": data},
        blocks=blocks or [line(("no mistakes found", "good"))],
        exit_code=1 if faults else 0,
    )


def schema(
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Print the JSON schema of config.yaml, for editors."""
    from bough.agents.config.schema import json_schema

    data = json_schema()
    return Report(command="agents schema", data=data, blocks=[*paragraph(json_text.dumps(data, indent=2))])


def describe_agent(agent_config: AgentConfig, name: str) -> JsonObject:
    """Return the name and entry of an agent. Entries contain no keys or tokens."""
    entry = agent_config.entry(name)
    return {
        "name": name,
        **entry.model_dump(mode="json", exclude_defaults=True),
        # Always included, also if they have their default values.
        "description": entry.description,
        "model": entry.model,
    }


def _tree(agent_config: AgentConfig, name: str, depth: int) -> Iterator[Block]:
    """Yield the lines about an agent and its sub-agents, indented by their depth."""
    described = describe_agent(agent_config, name)
    indent = "  " * depth
    yield line(indent, (name, "id"), f"  {described.pop('description')}")
    sub_agents: list[Any] = described.pop("sub_agents", [])
    for key, value in described.items():
        if key not in ("name", "system_prompt") and value is not None:
            value_text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore
            yield line(f"{indent}  ", (f"{key} ", "dim"), value_text)
    for sub_agent in sub_agents:
        if sub_agent in agent_config.names:
            yield from _tree(agent_config, sub_agent, depth + 1)
        else:
            yield line(f"{indent}  ", (str(sub_agent), "id"))


def _load(config: Path | None, home: str | None, store: str | None) -> AgentConfig:
    from bough.agents.config.agents import AgentConfig

    return AgentConfig.load(config, settings=options.load_settings(home, store))
