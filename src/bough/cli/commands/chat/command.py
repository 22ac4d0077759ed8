"""`bough chat`: a conversation in a terminal, over a pipe, or with a program."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.agent_file import may_write, resolve_agent
from bough.cli.complete import complete_ids
from bough.cli.render import renderer_for
from bough.cli.rule_options import NO_RULES, RuleOptions
from bough.cli.target import Target, change_model, open_conversation
from bough.cli.text import line
from bough.cli.turns.turn import describe_start
from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation


def chat(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="A conversation to continue with; none starts a new one.", autocompletion=complete_ids
        ),
    ] = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    skills: options.SkillRoots = None,
    workspace: options.Workspace = Path(),
    agent: options.Agent = None,
    executor: options.Executor = None,
    packages: options.Packages = None,
    rules: RuleOptions = NO_RULES,
    script_timeout: options.ScriptTimeout = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> int:
    """Talk with an agent. Esc or Ctrl+C stops a run, Ctrl+C twice leaves; /help lists the commands.

    Without a terminal, each line of stdin is a message or a command; with --json, each line is JSON.
    """
    settings = options.load_settings(
        home,
        store,
        model=model,
        base_url=base_url,
        executor=executor,
        packages=packages,
        skill_roots=None if id is None else skills,  # a new conversation records them with its agent
        script_timeout=script_timeout,
        cwd=workspace,
    )
    renderer = renderer_for(json=json)
    roots = options.parse_skill_roots(skills)

    async def begin() -> AsyncConversation:
        if id is not None:
            conversation, warnings = await _open(id, settings, rules, agent=agent, model=model, base_url=base_url)
            for warning in warnings:
                renderer.note(line(("warning: ", "warn"), warning, hang=9))
            return conversation
        from bough.conversation import AsyncConversation

        spec = resolve_agent(agent, settings, skill_roots=roots)
        chosen_rules = rules.make_rules(settings, workspace, may_write=may_write(spec))
        conversation = await AsyncConversation.create(spec, workspace=workspace, settings=settings, **chosen_rules)
        if note := describe_start(settings.model is not None or agent is not None, conversation.agent.model_name):
            renderer.note(note)
        return conversation

    with asyncio.Runner() as runner:
        conversation = runner.run(begin())
        # Imported here, because these modules import prompt_toolkit and the event models.
        from bough.cli.commands.chat.session import ChatSession

        session = ChatSession(conversation, settings, rules)
        try:
            if json:
                from bough.cli.commands.chat.json_lines import JsonChat

                return runner.run(JsonChat(session, renderer).run())
            if _has_screen():
                from bough.cli.commands.chat.terminal import TerminalChat

                return runner.run(TerminalChat(session).run())
            from bough.cli.commands.chat.lines import LineChat

            LineChat(session, renderer).loop(runner)
        finally:
            runner.run(session.aclose())
    return 0


def _has_screen() -> bool:
    """Return whether the terminal can redraw its last lines."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


async def _open(
    id: str, settings: Settings, rules: RuleOptions, *, agent: Path | None, model: str | None, base_url: str | None
) -> tuple[AsyncConversation, list[str]]:
    """Open a conversation to continue it. Returns it with the warnings to show."""
    target = Target.parse(id)
    if target.at is not None:
        raise InvalidInput("a conversation continues at its end", hint=f"`bough fork {id}` branches off there")
    if agent is not None:
        raise InvalidInput("a conversation keeps its agent", hint="leave --agent out, or use /agent in the chat")
    conversation = await open_conversation(target.name, settings, rules)
    return conversation, await change_model(conversation, model, base_url)
