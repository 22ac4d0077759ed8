"""`bough resume`: continues a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.render import Renderer, renderer_for
from bough.cli.rule_options import NO_RULES, RuleOptions
from bough.cli.target import Target, change_model, open_conversation
from bough.cli.text import line
from bough.cli.turns.turn import WatchedRun, shows_stream
from bough.cli.turns.untrusted import refuse_untrusted_request
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation, Turn

Message = Annotated[str | None, typer.Argument(metavar="PROMPT", help="Message to send first.")]


def resume(
    id: options.WholeConversation = "-",
    prompt: Message = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    rules: RuleOptions = NO_RULES,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    packages: options.Packages = None,
    no_stream: options.NoStream = False,
    check: options.Check = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> int:
    """Continue a conversation: finish its run, or answer PROMPT."""
    target = Target.parse(id)
    if target.at is not None:
        raise InvalidInput(
            "a conversation continues at its end", hint=f"`bough fork {id}` branches off there, and the fork continues"
        )
    settings = options.load_settings(home, store, script_timeout=script_timeout, packages=packages)
    renderer = renderer_for(json=json)

    async def main() -> int:
        async with await open_conversation(target.name, settings, rules) as conversation:
            warnings = await change_model(conversation, model, base_url)
            return await continue_run(
                conversation,
                renderer,
                rules,
                prompt,
                command="resume",
                json=json,
                stream=shows_stream(no_stream),
                timeout_seconds=timeout,
                check=check,
                warnings=warnings,
            )

    return asyncio.run(main())


async def continue_run(
    conversation: AsyncConversation,
    renderer: Renderer,
    rules: RuleOptions,
    prompt: str | None,
    *,
    repeat: Turn | None = None,
    command: str,
    json: bool,
    stream: bool,
    timeout_seconds: float | None,
    check: bool = False,
    warnings: Iterable[str] = (),
) -> int:
    """Send the prompt or repeat a turn's message, if there is one, run the conversation, and return the exit code."""
    turn = WatchedRun(conversation, renderer, command=command, json=json, stream=stream, check=check)
    turn.warn_all(warnings)
    turn.warn_all(rules.list_kept_rules(conversation.state.policies))
    turn.warn_all(rules.warnings(conversation.settings.home, conversation.workspace, conversation.agent.model_name))
    await turn.heading()
    start = conversation.state.head  # read before the message is added, so that the message is shown
    if prompt is not None:
        refuse_untrusted_request(conversation, prompt)
        await conversation.send_message(prompt)
    elif repeat is not None:
        await conversation.repeat(repeat)
    elif not conversation.state.has_work:
        renderer.note(
            line((f'nothing to do; add a message to continue: bough resume {conversation.short_id} "…"', "dim"))
        )
    return await turn.run(timeout_seconds=timeout_seconds, show_from=start)
