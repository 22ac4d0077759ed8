"""`bough run`: one turn of a new conversation, or a task for a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import agent_file, options
from bough.cli.prompt import Attachment, read_prompt
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.rule_options import NO_RULES, RuleOptions
from bough.cli.tasks import submit_detached
from bough.cli.text import line
from bough.cli.turns.turn import WatchedRun, describe_start, shows_stream
from bough.cli.turns.untrusted import refuse_untrusted_start
from bough.cli.usage import name_command
from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec

Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        help="What to do, or /skill and its arguments; - or nothing: stdin. Piped text is added to it.",
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="File with the prompt, or with a text beside PROMPT; - for stdin."
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Submit the run as a task and print its id.")]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="K", help="With --detach: the same key gives the same task.")
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
    packages: options.Packages = None,
    rules: RuleOptions = NO_RULES,
    timeout: options.Timeout = None,
    script_timeout: options.ScriptTimeout = None,
    title: options.Title = None,
    tag: options.Tags = None,
    no_stream: options.NoStream = False,
    check: options.Check = False,
    until: options.Until = None,
    check_timeout: options.CheckTimeout = 600.0,
    detach: Detach = False,
    idempotency_key: IdempotencyKey = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | int:
    """Start a conversation and print its answer. With --json, prints one event per line, the result last."""
    if packages is not None and detach:
        raise InvalidInput(
            "--packages cannot be combined with --detach", hint="set `packages` in the bough.yaml of the worker's home"
        )
    if idempotency_key is not None and not detach:
        raise InvalidInput("--idempotency-key requires --detach", hint="add --detach, or omit the key")
    text, attachments = read_prompt(prompt, file)
    if attachments and detach:
        raise InvalidInput(
            "--detach takes a prompt only, without a file or piped text beside it",
            hint="name the file in the prompt, or redirect stdin from /dev/null",
        )
    tags = options.parse_tags(tag)
    run_check = options.make_check(until, check_timeout)
    settings = options.load_settings(
        home,
        store,
        model=model,
        base_url=base_url,
        executor=executor,
        packages=packages,
        script_timeout=script_timeout,
        cwd=workspace,
    )
    roots = options.parse_skill_roots(skills)  # not part of the settings, because they are recorded with the agent
    renderer = renderer_for(json=json)
    _warn_about_command(text, renderer)

    async def main() -> Report | int:
        from bough.conversation import AsyncConversation
        from bough.conversation.agent import settle_spec

        spec = agent_file.resolve_agent(agent, settings, skill_roots=roots, settle_model=not detach)
        if not detach:
            spec = settle_spec(spec, settings)
        if attachments and spec.model == "offline":
            raise _make_unreadable_error(attachments)
        message = text if skill is None else _with_skill(skill, text, spec, workspace, settings)
        rule_arguments = rules.make_rules(settings, workspace, may_write=agent_file.may_write(spec))
        if detach:
            folder = str(workspace.absolute())
            return await submit_detached(
                spec, message, settings=settings, workspace=folder, rules=rule_arguments, title=title, tags=tags,
                key=idempotency_key, check=run_check,
            )  # fmt: skip
        # Before anything is created: a recorded message would be run by the next `bough resume`.
        refuse_untrusted_start(spec, message, workspace, settings)
        conversation = await AsyncConversation.create(
            spec, workspace=workspace, title=title, tags=tags, settings=settings, **rule_arguments
        )
        async with conversation:
            if note := describe_start(settings.model is not None or agent is not None, conversation.agent.model_name):
                renderer.note(note)
            turn = WatchedRun(
                conversation,
                renderer,
                command="run",
                json=json,
                stream=shows_stream(no_stream),
                check=check,
                until=run_check,
            )
            turn.warn_all(rules.warnings(settings.home, conversation.workspace, conversation.agent.model_name))
            await turn.heading()
            await conversation.send_message(message, files=[attachment.as_part() for attachment in attachments])
            exit_code = await turn.run(timeout_seconds=timeout, show_from=0)
            if conversation.agent.model_name == "offline" and not conversation.skills.list_catalogued():
                renderer.note(
                    line("no skills here: `bough demo` shows some at work, `bough init` starts a project with one")
                )
            return exit_code

    return asyncio.run(main())


def _warn_about_command(prompt: str, renderer: Renderer) -> None:
    """Say so if the whole prompt is the name of a command, such as `doctor`."""
    words = prompt.split()
    if words and name_command(words) == " ".join(words):
        renderer.note(line(("did you mean: ", "warn"), f"bough {' '.join(words)}"))


def _with_skill(name: str, text: str, agent: AgentSpec, workspace: Path, settings: Settings) -> str:
    """Return a message that calls a skill with `text` as its arguments.

    Raises:
        NotFound: The agent has no such skill in this workspace.
    """
    from bough.agents.build import open_registry
    from bough.conversation.agent import workspace_folder

    folder = workspace_folder(workspace)
    skill = open_registry(agent, workspace=folder, home=settings.home, roots=settings.skill_roots).get(name)
    return f"/{skill.name} {text}"


def _make_unreadable_error(attachments: Sequence[Attachment]) -> InvalidInput:
    # Not joined to the prompt: the planner would take what the text says for requests, and run scripts for them.
    names = " and ".join(attachment.name for attachment in attachments)
    return InvalidInput(
        f"the offline planner cannot read {names}",
        hint="save the text in the working folder and name the file in the prompt, or choose a model with --model",
    )
