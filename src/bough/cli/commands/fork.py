"""`bough fork`: forks a conversation and, with a prompt, runs the fork."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import typer

from bough.cli import options
from bough.cli.commands.resume import Message, continue_run
from bough.cli.render import Report, renderer_for
from bough.cli.rule_options import NO_RULES, RuleOptions
from bough.cli.target import Target, describe_new_address, find_new_address, open_conversation, resolve, short
from bough.cli.text import line, one_line
from bough.cli.turns.turn import shows_stream
from bough.cli.turns.untrusted import refuse_untrusted_start
from bough.errors import InvalidInput
from bough.events.record import ConversationRecord
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation
    from bough.conversation.fork.request import Moment
    from bough.conversation.fork.workspace import WorkspacePolicy
    from bough.conversation.log.turns import Turn, TurnRecord


def fork(
    id: options.Conversation,
    prompt: Message = None,
    title: options.Title = None,
    tag: options.Tags = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Reason for the fork, recorded with it.")
    ] = None,
    pending: Annotated[
        str, typer.Option("--pending", metavar="close|drop", help="Unfinished calls: record as not executed, or drop.")
    ] = "close",
    workspace: Annotated[
        str,
        typer.Option(
            "--workspace",
            "--files",
            metavar="shared|readonly|copy|worktree",
            help="Files: the same folder, read-only, a copy or a git worktree.",
        ),
    ] = "shared",
    moment: Annotated[
        str,
        typer.Option("--moment", metavar="then|now", help="Files of a copy: at the cut, or as they are now."),
    ] = "then",
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", min=0, help="Keep the first N turns; see `bough conv turns`.")
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Fork before turn N instead, send its message again, and run the fork.")
    ] = False,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools",
            metavar="recorded|recorded-or-run",
            help="Answer calls from the source's log; refuse others, or run them.",
        ),
    ] = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    rules: RuleOptions = NO_RULES,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    no_stream: options.NoStream = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Fork a conversation. ID@SEQ keeps only its first SEQ events; PROMPT runs the fork."""
    target = Target.parse(id)
    _check_turn(target, turn, prompt, repeat=repeat)
    tags = options.parse_tags(tag)
    settings = options.load_settings(home, store, script_timeout=script_timeout)
    renderer = renderer_for(json=json)
    pending_policy = _parse_pending(pending)
    workspace_policy = _parse_workspace(workspace)

    async def main() -> Report | int:
        at = _find_cut(target, turn, repeat=repeat)
        runs_fork = prompt is not None or repeat
        # Without these options no agent is needed, so the model libraries are not loaded.
        keeps_agent = model is None and base_url is None and tools is None and rules == NO_RULES
        if not runs_fork and keeps_agent and workspace_policy == "shared":
            report = await _fork_unopened(
                settings, target, at=at, title=title, tags=tags, reason=reason, pending=pending_policy
            )
            if report is not None:
                return report
        from bough.conversation.agent import with_other_model

        async with await open_conversation(target.name, settings, rules) as source:
            fork_title = one_line(prompt, 60) if title is None and prompt is not None else title
            repeated = await _read_turn(source, turn) if repeat and turn is not None else None
            overrides: Any = {} if tools is None else {"tools": tools}
            address = find_new_address(source.agent, model, base_url)
            agent = None
            if model is not None or address is not None:
                agent = with_other_model(source.agent, model or source.agent.model, address or source.agent.base_url)
            if prompt is not None:  # before the fork is created
                refuse_untrusted_start(agent or source.agent, prompt, source.workspace, source.settings)
            warnings = [] if address is None else [describe_new_address(source.agent, address)]
            fork = await source.fork(
                at=at,
                agent=agent,
                overrides=overrides,
                title=fork_title,
                tags=tags,
                reason=reason,
                pending=pending_policy,
                workspace=workspace_policy,
                moment=_parse_moment(moment),
            )
            async with fork:
                if not runs_fork:
                    record = await fork.store.get(fork.id)
                    return _report_fork(source.id, record, has_work=fork.state.has_work)
                return await continue_run(
                    fork,
                    renderer,
                    rules,
                    prompt,
                    repeat=repeated,
                    command="fork",
                    json=json,
                    stream=shows_stream(no_stream),
                    timeout_seconds=timeout,
                    warnings=warnings,
                )

    return asyncio.run(main())


def _check_turn(target: Target, turn: int | None, prompt: str | None, *, repeat: bool) -> None:
    """Check that the options that name a turn go together.

    Raises:
        InvalidInput: They do not.
    """
    if turn is not None and target.at is not None:
        raise InvalidInput(f"both @{target.at} and --turn {turn} were given", hint="cut at one of them")
    if repeat and not turn:
        raise InvalidInput("--repeat needs the number of a turn", hint="--turn N; `bough conv turns` lists them")
    if repeat and prompt is not None:
        raise InvalidInput("both a prompt and --repeat were given", hint="send one message, then resume the fork")


def _find_cut(target: Target, turn: int | None, *, repeat: bool) -> int | Turn | None:
    from bough.conversation.log.turns import Turn

    if turn is None:
        return target.at
    return Turn(turn - 1 if repeat else turn)


async def _read_turn(source: AsyncConversation, number: int) -> TurnRecord:
    """Return a turn of a conversation.

    Raises:
        InvalidInput: There is no such turn.
    """
    from bough.conversation.log.turns import read_turn_page

    turns, _ = await read_turn_page(source.store, source.id, number, 1, head=source.state.head)
    if not turns:
        raise InvalidInput(
            f"there is no turn {number}: the conversation has {source.state.turns}",
            hint="`bough conv turns` lists them",
        )
    return turns[0]


async def _fork_unopened(settings: Settings, target: Target, **request_fields: Any) -> Report | None:
    """Fork without building the agent, because that loads the model libraries. Return None if the agent is needed.

    Args:
        request_fields: Fields of the `ForkRequest`.
    """
    from bough.conversation.fork.fork import fork_unopened
    from bough.conversation.fork.request import ForkRequest

    async with options.open_settings_store(settings) as store:
        source = await resolve(store, target.name)
        fork = await fork_unopened(store, source, ForkRequest(**request_fields), settings)
    return None if fork is None else _report_fork(source, fork.record, has_work=fork.state.has_work)


def _report_fork(source: UUID, record: ConversationRecord, *, has_work: bool) -> Report:
    from bough.cli.commands.conv.look import record_json

    name = short(record.id)
    resume_command = f"bough resume {name}" + ("" if has_work else ' "…"')
    return Report(
        command="fork",
        data={"conversation": record_json(record)},
        blocks=[line((name, "id"), f"  fork of {short(source)}@{record.forked_at}")],
        next=(resume_command, f"bough conv tree {name}"),
    )


def _parse_pending(choice: str) -> Literal["close", "drop"]:
    if choice == "close" or choice == "drop":
        return choice
    raise InvalidInput(
        f"--pending {choice!r} is neither close nor drop",
        hint="close records the calls as not executed, drop removes them",
    )


def _parse_moment(choice: str) -> Moment:
    if choice == "then" or choice == "now":
        return choice
    raise InvalidInput(f"--moment {choice!r} is neither then nor now", hint="then gives the files at the cut")


def _parse_workspace(choice: str) -> WorkspacePolicy:
    if choice == "shared" or choice == "readonly" or choice == "copy" or choice == "worktree":
        return choice
    raise InvalidInput(f"invalid --workspace {choice!r}", hint="choose one of: shared, readonly, copy, worktree")
