"""`bough chat`: a conversation at the keyboard."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bough.cli import options
from bough.cli.agent_file import may_write, resolve_agent
from bough.cli.render import Renderer, renderer_for
from bough.cli.rule_options import NO_RULES, RuleOptions
from bough.cli.target import Target, change_model, open_conversation
from bough.cli.text import Line, line
from bough.cli.turns.always import Always
from bough.cli.turns.turn import WatchedRun, describe_start
from bough.cli.turns.untrusted import refuse_untrusted_request
from bough.errors import BoughError, InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation

T = TypeVar("T")
PROMPT = "> "
HELP = (
    ("/skills", "list the skills; /NAME … uses one"),
    ("/fork [SEQ]", "continue in a branch, cut after the first SEQ events"),
    ("/model NAME", "continue with another model"),
    ("/cost", "what was used so far"),
    ("/quit", "leave; bough resume continues"),
)


def chat(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A conversation to continue with; none starts a new one.")
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
) -> int:
    """Talk with an agent. Esc or Ctrl+C pauses a run, Ctrl+C twice quits; /help lists the commands."""
    roots = options.parse_skill_roots(skills)
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
    with asyncio.Runner() as runner:
        begun = _begin(id, settings, rules, workspace, agent=agent, model=model, base_url=base_url, skill_roots=roots)
        chatting = runner.run(begun)
        try:
            chatting.loop(runner)
        finally:
            runner.run(chatting.aclose())
    return 0


async def _begin(
    id: str | None,
    settings: Settings,
    rules: RuleOptions,
    workspace: Path,
    *,
    agent: Path | None,
    model: str | None,
    base_url: str | None,
    skill_roots: tuple[Path, ...],
) -> Chat:
    from bough.conversation import AsyncConversation

    renderer = renderer_for(json=False)
    if id is None:
        spec = resolve_agent(agent, settings, skill_roots=skill_roots)
        conversation = await AsyncConversation.create(
            spec,
            workspace=workspace,
            settings=settings,
            **rules.make_rules(settings, workspace, may_write=may_write(spec)),
        )
        if note := describe_start(settings.model is not None or agent is not None, conversation.agent.model_name):
            renderer.note(note)
    else:
        target = Target.parse(id)
        if target.at is not None:
            raise InvalidInput("a conversation continues at its end", hint=f"`bough fork {id}` branches off there")
        if agent is not None:
            raise InvalidInput("a conversation keeps its agent", hint="leave --agent out, or start a new one")
        conversation = await open_conversation(target.name, settings, rules)
        for warning in await change_model(conversation, model, base_url):
            renderer.note(line(("warning: ", "warn"), warning, hang=9))
    return Chat(conversation, renderer, rules)


class Chat:
    """The loop of asking, doing and showing."""

    def __init__(self, conversation: AsyncConversation, renderer: Renderer, rules: RuleOptions) -> None:
        self._conversation = conversation
        self._renderer = renderer
        self._rules = rules
        self._opened = [conversation]
        self._always = Always()
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/fork": self._fork,
            "/skills": self._skills,
            "/cost": self._cost,
            "/model": self._model,
            "/help": self._help,
        }

    async def aclose(self) -> None:
        """Close every conversation that was used."""
        for conversation in reversed(self._opened):
            await conversation.aclose()

    def loop(self, runner: asyncio.Runner) -> None:
        """Ask and answer until the end of input, `/quit`, or Ctrl+C twice."""
        _edit_lines()
        runner.run(self._greet())
        self._note("/help lists the commands")
        interrupted = False
        while True:
            try:
                text = input(PROMPT if sys.stdin.isatty() else "").strip()
                if text == "/quit":
                    return
                if text:
                    runner.run(self._answer(text))
                interrupted = False
            except EOFError:
                return
            except KeyboardInterrupt:
                if interrupted:
                    return
                interrupted = True
                self._note("Ctrl+C once more quits")
            except BoughError as error:
                self._renderer.error(error)

    async def _greet(self) -> None:
        conversation, turn = self._conversation, self._turn()
        turn.warn_all(self._rules.list_kept_rules(conversation.state.policies))
        home, model = conversation.settings.home, conversation.agent.model_name
        turn.warn_all(self._rules.warnings(home, conversation.workspace, model))
        await turn.heading()

    def _turn(self) -> WatchedRun:
        return WatchedRun(
            self._conversation,
            self._renderer,
            command="chat",
            json=False,
            stream=sys.stdout.isatty(),
            always=self._always,
            on_escape=self._pause,
        )

    async def _answer(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if command := self._commands.get(word):
            await command(rest.strip())
            return
        start = self._conversation.state.head
        refuse_untrusted_request(self._conversation, text)
        await self._conversation.send_message(text)
        await self._turn().run(show_from=start)

    def _pause(self) -> None:
        self._note("pausing")
        self._pausing = asyncio.ensure_future(self._conversation.interrupt())

    async def _fork(self, at: str) -> None:
        if at and not at.isdigit():
            raise InvalidInput(f"{at!r} is not a number of events", hint="/fork 5 keeps the first 5 events")
        branch = await self._conversation.fork(at=int(at) if at else None)
        self._opened.append(branch)
        self._conversation = branch
        await self._turn().heading()

    async def _skills(self, _: str) -> None:
        found = self._conversation.skills.list_all()
        for skill in found:
            self._renderer.note(line(("  " + skill.name, "id"), f"  {skill.description}", hang=4))
        if not found:
            self._note("no skills here")

    async def _cost(self, _: str) -> None:
        usage = self._conversation.usage
        cost = "unknown" if usage.cost_usd is None else f"{usage.cost_usd:.4f} USD"
        self._renderer.note(
            line(
                f"{usage.requests} requests, {usage.input_tokens} + {usage.output_tokens} tokens, "
                f"{usage.cached_share:.0%} of the input cached, cost {cost}"
            )
        )

    async def _model(self, name: str) -> None:
        if not name:
            self._note(f"model {self._conversation.agent.model_name}")
            return
        await self._conversation.set_model(name)
        await self._turn().heading()

    async def _help(self, _: str) -> None:
        for command, what in HELP:
            self._renderer.note(line((f"  {command:<13}", "strong"), what))

    def _note(self, text: str) -> None:
        self._renderer.note(Line(((text, "dim"),)))


def _edit_lines() -> None:
    """Give the prompt a history and the arrow keys, where the platform has them."""
    if sys.stdin.isatty():
        import_module("readline")
