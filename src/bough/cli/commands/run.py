"""`bough run`, `bough resume`, `bough fork`: turns of a conversation, without asking back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bough.cli import options
from bough.cli.agent_file import agent_of, may_write
from bough.cli.detach import submit_detached
from bough.cli.opening import opened_conversation
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.rules import NO_RULES, RuleOptions
from bough.cli.target import Target
from bough.cli.text import line, one_line
from bough.cli.turns.turn import WatchedRun, started_note
from bough.cli.turns.untrusted import refuse_untrusted_request
from bough.config import Settings
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation import AsyncConversation

Prompt = Annotated[
    str | None, typer.Argument(metavar="PROMPT", help="What to do, or /skill and its arguments. Default: stdin.")
]
Message = Annotated[str | None, typer.Argument(metavar="PROMPT", help="A message to send first.")]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the prompt from a file.")]
Detach = Annotated[bool, typer.Option("--detach", help="Submit it as a task, print its id, and end.")]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="K", help="With --detach: the same key, the same task.")
]


def run(
    prompt: Prompt = None,
    file: File = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    skills: options.SkillRoots = None,
    workspace: options.Workspace = Path(),
    agent: options.Agent = None,
    skill: options.Skill = None,
    executor: options.Executor = None,
    rules: RuleOptions = NO_RULES,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    title: options.Title = None,
    tag: options.Tags = None,
    no_stream: options.NoStream = False,
    check: options.Check = False,
    detach: Detach = False,
    idempotency_key: IdempotencyKey = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Start a conversation and print its answer. With --json one event a line, the result last."""
    if idempotency_key is not None and not detach:
        raise InvalidInput("--idempotency-key goes with --detach", hint="a task is made once for each key")
    text = _prompt(prompt, file)
    tags = options.tags_of(tag)
    settings = options.settings_of(
        home,
        store,
        model=model,
        base_url=base_url,
        executor=executor,
        script_timeout=script_timeout,
        cwd=workspace,
    )
    roots = options.skill_roots_of(skills)
    renderer = renderer_for(json=json)

    async def main() -> Report | int:
        from bough.conversation import AsyncConversation

        spec = agent_of(agent, settings, skill_roots=roots)
        message = text if skill is None else _with_skill(skill, text, spec, workspace, settings)
        if detach:
            given = rules.given(settings, workspace, may_write=may_write(spec))
            folder = str(workspace.absolute())
            return await submit_detached(
                spec, message, settings=settings, workspace=folder, rules=given, title=title, tags=tags,
                key=idempotency_key,
            )  # fmt: skip
        given = rules.given(settings, workspace, may_write=may_write(spec))
        conversation = await AsyncConversation.create(
            spec, workspace=workspace, title=title, tags=tags, settings=settings, **given
        )
        async with conversation:
            if note := started_note(settings.model is not None or agent is not None, conversation.agent.model_name):
                renderer.note(note)
            turn = WatchedRun(conversation, renderer, command="run", json=json, stream=streams(no_stream), check=check)
            turn.warn_all(rules.warnings(settings.home, conversation.workspace, conversation.agent.model_name))
            await turn.heading()
            refuse_untrusted_request(conversation, message)
            await conversation.send_message(message)
            return await turn.run(timeout_seconds=timeout, show_from=0)

    return asyncio.run(main())


def resume(
    id: options.Conversation = "-",
    prompt: Message = None,
    model: options.Model = None,
    rules: RuleOptions = NO_RULES,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    no_stream: options.NoStream = False,
    check: options.Check = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> int:
    """Continue with a conversation. What was interrupted is finished; with PROMPT, that is answered."""
    target = Target.parse(id)
    if target.at is not None:
        raise InvalidInput(
            "a conversation continues at its end", hint=f"`bough fork {id}` branches off there, and the fork continues"
        )
    settings = options.settings_of(home, store, script_timeout=script_timeout)
    renderer = renderer_for(json=json)

    async def main() -> int:
        async with await opened_conversation(target.name, settings, rules) as conversation:
            if model is not None:
                await conversation.set_model(model)
            return await go_on(
                conversation,
                renderer,
                rules,
                prompt,
                command="resume",
                json=json,
                stream=streams(no_stream),
                timeout_seconds=timeout,
                check=check,
            )

    return asyncio.run(main())


def fork(
    id: options.Conversation,
    prompt: Message = None,
    title: options.Title = None,
    tag: options.Tags = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = None,
    pending: Annotated[
        str, typer.Option("--pending", metavar="close|drop", help="What to do with calls open at the cut.")
    ] = "close",
    model: options.Model = None,
    rules: RuleOptions = NO_RULES,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    no_stream: options.NoStream = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Branch off a conversation. ID@SEQ cuts after its first SEQ events; with PROMPT the branch is run."""
    target = Target.parse(id)
    tags = options.tags_of(tag)
    settings = options.settings_of(home, store, script_timeout=script_timeout)
    renderer = renderer_for(json=json)

    async def main() -> Report | int:
        async with await opened_conversation(target.name, settings, rules) as source:
            name = title if title is not None or prompt is None else one_line(prompt, 60)
            agent = None if model is None else source.agent.model_copy(update={"model": model})
            branch = await source.fork(
                at=target.at, agent=agent, title=name, tags=tags, reason=reason, pending=_pending(pending)
            )
            async with branch:
                if prompt is None:
                    return await _forked(source, branch)
                return await go_on(
                    branch,
                    renderer,
                    rules,
                    prompt,
                    command="fork",
                    json=json,
                    stream=streams(no_stream),
                    timeout_seconds=timeout,
                )

    return asyncio.run(main())


async def go_on(
    conversation: AsyncConversation,
    renderer: Renderer,
    rules: RuleOptions,
    prompt: str | None,
    *,
    command: str,
    json: bool,
    stream: bool,
    timeout_seconds: float | None,
    check: bool = False,
) -> int:
    """Run a conversation that exists, after a message where there is one, and return the exit code."""
    turn = WatchedRun(conversation, renderer, command=command, json=json, stream=stream, check=check)
    turn.warn_all(rules.kept(conversation.state.policies))
    turn.warn_all(rules.warnings(conversation.settings.home, conversation.workspace, conversation.agent.model_name))
    await turn.heading()
    start = conversation.state.head
    if prompt is not None:
        refuse_untrusted_request(conversation, prompt)
        await conversation.send_message(prompt)
    elif not conversation.state.has_work:
        renderer.note(line((f'nothing is left to do; bough resume {conversation.short_id} "…" says more', "dim")))
    return await turn.run(timeout_seconds=timeout_seconds, show_from=start)


async def _forked(source: AsyncConversation, branch: AsyncConversation) -> Report:
    from bough.cli.commands.conv.look import record_json

    record = await branch.store.get(branch.id)
    at = record.forked_at
    then = f"bough resume {branch.short_id}" + ("" if branch.state.has_work else ' "…"')
    return Report(
        command="fork",
        data={"conversation": record_json(record)},
        blocks=[
            line(
                (branch.short_id, "id"),
                f"  fork of {source.short_id}@{at}",
            )
        ],
        next=(then, f"bough conv tree {branch.short_id}"),
    )


def _pending(choice: str) -> Literal["close", "drop"]:
    if choice == "close" or choice == "drop":
        return choice
    raise InvalidInput(f"--pending {choice!r} is neither close nor drop", hint="close keeps the call as not executed")


def _with_skill(name: str, text: str, agent: AgentSpec, workspace: Path, settings: Settings) -> str:
    """Return the message that uses a skill.

    Raises:
        NotFound: The agent has no such skill here.
    """
    from bough.agents.build import registry_of
    from bough.conversation.agent import workspace_folder

    folder = workspace_folder(workspace)
    skill = registry_of(agent, workspace=folder, home=settings.home, roots=settings.skill_roots).get(name)
    return f"/{skill.name} {text}"


def _prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, the file or stdin.

    Raises:
        InvalidInput: There is none, it is empty, there are two, or it cannot be read.
    """
    if prompt is not None and file is not None:
        raise InvalidInput("both a prompt and --file were given", hint="pass only one")
    if prompt is None and file is None and sys.stdin.isatty():
        raise InvalidInput("there is no prompt", hint='bough run "…", bough run -f FILE, or a pipe; bough chat asks')
    text = _read(file) if prompt is None else prompt
    if not text.strip():
        raise InvalidInput("the prompt is empty", hint="say what should be done")
    return text


def _read(file: Path | None) -> str:
    try:
        return sys.stdin.read() if file is None else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the prompt cannot be read: {error}", hint="give a text file in UTF-8") from error


def streams(no_stream: bool) -> bool:
    """Whether the answer is shown as it comes."""
    return not no_stream and sys.stdout.isatty()
