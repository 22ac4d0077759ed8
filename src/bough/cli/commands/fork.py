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
from bough.cli.target import Target, describe_new_address, find_new_address, open_conversation, short
from bough.cli.text import line, one_line
from bough.cli.turns.turn import shows_stream
from bough.errors import InvalidInput
from bough.events.record import ConversationRecord
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation.fork.workspace import WorkspacePolicy


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
            metavar="shared|readonly|copy|worktree",
            help="Files: the same folder, read-only, a copy or a git worktree.",
        ),
    ] = "shared",
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
    tags = options.parse_tags(tag)
    settings = options.load_settings(home, store, script_timeout=script_timeout)
    renderer = renderer_for(json=json)
    pending_policy = _parse_pending(pending)
    workspace_policy = _parse_workspace(workspace)

    async def main() -> Report | int:
        # Without these options no agent is needed, so the model libraries are not loaded.
        if prompt is None and model is None and base_url is None and rules == NO_RULES and workspace_policy == "shared":
            report = await _fork_unopened(
                settings, target, title=title, tags=tags, reason=reason, pending=pending_policy
            )
            if report is not None:
                return report
        from bough.conversation.agent import with_other_model

        async with await open_conversation(target.name, settings, rules) as source:
            fork_title = one_line(prompt, 60) if title is None and prompt is not None else title
            address = find_new_address(source.agent, model, base_url)
            agent = None
            if model is not None or address is not None:
                agent = with_other_model(source.agent, model or source.agent.model, address or source.agent.base_url)
            warnings = [] if address is None else [describe_new_address(source.agent, address)]
            fork = await source.fork(
                at=target.at,
                agent=agent,
                title=fork_title,
                tags=tags,
                reason=reason,
                pending=pending_policy,
                workspace=workspace_policy,
            )
            async with fork:
                if prompt is None:
                    record = await fork.store.get(fork.id)
                    return _report_fork(source.id, record, has_work=fork.state.has_work)
                return await continue_run(
                    fork,
                    renderer,
                    rules,
                    prompt,
                    command="fork",
                    json=json,
                    stream=shows_stream(no_stream),
                    timeout_seconds=timeout,
                    warnings=warnings,
                )

    return asyncio.run(main())


async def _fork_unopened(settings: Settings, target: Target, **request_fields: Any) -> Report | None:
    """Fork without building the agent, because that loads the model libraries. Return None if the agent is needed.

    Args:
        request_fields: Fields of the `ForkRequest`.
    """
    from bough.conversation.fork.fork import fork_unopened
    from bough.conversation.fork.request import ForkRequest

    async with options.open_settings_store(settings) as store:
        source = await store.resolve(target.name)
        fork = await fork_unopened(store, source, ForkRequest(at=target.at, **request_fields), settings)
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


def _parse_workspace(choice: str) -> WorkspacePolicy:
    if choice == "shared" or choice == "readonly" or choice == "copy" or choice == "worktree":
        return choice
    raise InvalidInput(f"invalid --workspace {choice!r}", hint="choose one of: shared, readonly, copy, worktree")
