"""`bough try`: tries variants of the work in branches, and judges each by a check."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast
from uuid import UUID

import typer

from bough.cli import agent_file, options
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.render.base import show_nothing
from bough.cli.rule_options import NO_RULES, RuleOptions
from bough.cli.target import Target, open_conversation, short
from bough.cli.tasks import make_broker
from bough.cli.text import Block, Line, Span, Style, Table, line, one_line
from bough.errors import OUTCOMES, InvalidInput, NotFound
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation
    from bough.conversation.explore import Exploration, TriedBranch, Variant
    from bough.events.store import EventStore

_CONVERSATION = re.compile(r"-|[0-9a-f]{8,32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\S*@\d+")
_SESSIONS = UUID("0b1f5a34-55c5-5c0f-8f4b-8d6f3f0b2f11")
"""UUID namespace for sessions: the same source, variants and check have numbered ones."""

_KEEP = ("all", "winner")
_RUNNING = ("queued", "running")


@dataclass(frozen=True)
class _Plan:
    """What to try.

    Attributes:
        texts: The variants as given, to recognise a session.
    """

    variants: tuple[Variant, ...]
    texts: tuple[str, ...]
    message: str | None
    check: str | None
    repeats: int

    def name_session(self, source: str, number: int) -> UUID:
        """Return the id of the session with this number, of a source."""
        import json
        from uuid import uuid5

        return uuid5(_SESSIONS, json.dumps([source, self.texts, self.message, self.check, number]))


def try_(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID[@SEQ]] [PROMPT]...", help="Where to start; each prompt is one variant."),
    ] = None,
    variant: Annotated[
        Path | None, typer.Option("--variant", metavar="FILE", help="YAML or JSON file with variants.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="CMD", help="Judges the files of each branch; 0 passes."),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option("--repeat", metavar="N", min=1, help="Branches of each variant. Default: 1.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Branches at the same time.")] = 4,
    check_timeout: options.CheckTimeout = 600.0,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Let the workers of this queue run the branches.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the latest session with these arguments.")] = False,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="With --resume: this session.")] = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="all|winner", help="Which branches remain. Default: all.")
    ] = "all",
    workspace: options.Workspace = Path(),
    agent: options.Agent = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    skills: options.SkillRoots = None,
    executor: options.Executor = None,
    rules: RuleOptions = NO_RULES,
    script_timeout: options.ScriptTimeout = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Try variants of the work in branches, judged by a check.

    Each branch has a copy of the files. The best one is brought in with `bough conv apply`.
    """
    if keep not in _KEEP:
        raise InvalidInput(f"--keep {keep!r} is neither all nor winner", hint="winner deletes the other branches")
    if session is not None and not resume:
        raise InvalidInput("--session needs --resume", hint="add --resume, or leave --session out")
    if rules.secret:
        raise InvalidInput("--secret does not reach branches", hint="leave --secret out")
    target, prompts = _split_words(words or [])
    if target is not None and agent is not None:
        raise InvalidInput("both a conversation and --agent were given", hint="a variant of a file may name an agent")
    settings = options.load_settings(
        home,
        store,
        model=model,
        base_url=base_url,
        executor=executor,
        script_timeout=script_timeout,
        cwd=workspace,
    )
    roots = options.parse_skill_roots(skills)
    renderer = renderer_for(json=json)

    async def main() -> Report:
        from bough.conversation import AsyncConversation
        from bough.tasks.stores.backends import open_task_store

        plan = _read_plan(prompts, variant, check, repeat, settings)
        tasks = open_task_store(settings.store)
        log = await tasks.open()
        broker = make_broker(tasks, settings, queues=())
        try:
            if target is None:
                folder = workspace.absolute()
                chosen = await _choose_session(log, plan, f"folder {folder.resolve()}", resume, session)
                source_id = _name_source(chosen)
                spec = agent_file.resolve_agent(agent, settings, skill_roots=roots)
                rule_arguments = rules.make_rules(settings, workspace, may_write=agent_file.may_write(spec))
                where: Any = {"workspace": workspace, "settings": settings, "broker": broker.delegation}
                create: Any = AsyncConversation.create
                source: AsyncConversation[Any] = await create(
                    spec, id=source_id, exist_ok=True, title="try", **where, **rule_arguments
                )
            else:
                source = await open_conversation(target.name, settings, rules, broker=broker.delegation)
                position = f"{source.id}@{'' if target.at is None else target.at}"
                chosen = await _choose_session(log, plan, position, resume, session)
            async with source:
                # With a queue, its workers run the branches; this process only waits.
                if queue is None:
                    await broker.__aenter__()
                progress = _Progress(renderer, len(plan.variants) * plan.repeats)
                at = None if target is None else target.at
                tried = await _explore(source, plan, chosen, at, jobs, check_timeout, queue, progress)
                if tried is None:
                    return _report_interrupted(source, plan, chosen, progress)
                if keep == "winner" and tried.winner is not None:
                    await _delete_others(source, tried)
                return _report(tried, keep=keep)
        finally:
            await broker.aclose()
            await tasks.aclose()

    return asyncio.run(main())


async def _explore(
    source: AsyncConversation,
    plan: _Plan,
    session: UUID,
    at: int | None,
    jobs: int,
    check_timeout: float,
    queue: str | None,
    progress: _Progress,
) -> Exploration | None:
    """Run the branches. Returns None if Ctrl-C paused them."""
    try:
        with progress.spinner():
            return await source.explore(
                plan.variants,
                message=plan.message,
                check=plan.check,
                repeats=plan.repeats,
                at=at,
                jobs=jobs,
                check_timeout=check_timeout,
                session=session,
                queue=queue,
                on_update=progress.update,
            )
    except asyncio.CancelledError:
        # Swallowed: Ctrl-C ends the branches, and the table of what is done is still printed.
        return None


class _Progress:
    """Shows a line for each branch that ends.

    Attributes:
        branches: The latest state of each branch.
    """

    def __init__(self, renderer: Renderer, total: int) -> None:
        self.branches: dict[UUID, TriedBranch] = {}
        self._renderer = renderer
        self._total = total
        self._show: Callable[[str], None] = show_nothing

    @contextmanager
    def spinner(self) -> Generator[None]:
        """While the block runs, a terminal shows which branches run."""
        with self._renderer.busy(f"trying {self._total} branches") as self._show:
            yield

    def update(self, branch: TriedBranch) -> None:
        """Take the new state of a branch."""
        self.branches[branch.conversation] = branch
        running = [f"{other.variant} {other.repeat}" for other in self.branches.values() if other.status in _RUNNING]
        self._show(f"running {', '.join(running)}" if running else f"trying {self._total} branches")
        if branch.status in _RUNNING:
            return
        done = sum(other.status not in _RUNNING for other in self.branches.values())
        verdict, style = _describe_verdict(branch)
        mark = {"good": "✓", "bad": "✗"}.get(style, "·")
        details = f"  {branch.steps} steps  {branch.seconds:.1f} s  {done} of {self._total}"
        name = f"{branch.variant} {branch.repeat}"
        problem = f"  {one_line(branch.error, 60)}" if branch.error else ""
        self._renderer.note(
            line((f"  {mark} ", style), f"{name}  ", (verdict, style), (problem, "bad"), (details, "dim"), hang=4)
        )


def _split_words(words: Sequence[str]) -> tuple[Target | None, list[str]]:
    """Return the conversation that the first word names, if it names one, and the prompts."""
    if words and _CONVERSATION.fullmatch(words[0]):
        return Target.parse(words[0]), list(words[1:])
    return None, list(words)


def _read_plan(
    prompts: Sequence[str], file: Path | None, check: str | None, repeat: int | None, settings: Settings
) -> _Plan:
    """Return what to try: the variants of the file, then those of the prompts.

    Raises:
        InvalidInput: The file is invalid, or there are no variants.
    """
    from bough.conversation.explore import Variant

    data = {} if file is None else _read_file(file)
    variants = [_read_variant(entry, cast("Path", file), settings) for entry in data.get("variants", [])]
    texts = [repr(sorted(entry.items())) for entry in data.get("variants", [])]
    for number, prompt in enumerate(prompts, start=1):
        variants.append(Variant(str(number), prompt))
        texts.append(prompt)
    if not variants:
        raise InvalidInput("there is nothing to try", hint='give prompts, or --variant FILE: bough try "fix it"')
    return _Plan(
        variants=tuple(variants),
        texts=tuple(texts),
        message=data.get("message"),
        check=check if check is not None else data.get("check"),
        repeats=repeat or data.get("repeat") or 1,
    )


def _read_file(file: Path) -> dict[str, Any]:
    """Return the content of a file of variants.

    Raises:
        InvalidInput: It cannot be read, or has an unknown key or an invalid value.
    """
    import yaml

    from bough.cli.schemas.shared import VariantEntry, VariantsFile

    try:
        data: Any = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}", hint="give a YAML or JSON file of variants") from error
    _require_keys(data, set(VariantsFile.__annotations__), str(file))
    entries = data.get("variants")
    if not isinstance(entries, list):
        raise InvalidInput(f"{file} has no list of variants", hint="variants: [{name: short, message: …}]")
    for entry in cast("list[Any]", entries):
        _require_keys(entry, set(VariantEntry.__annotations__), f"a variant of {file}")
        for key, value in entry.items():
            _require_text(value, f"{key} of a variant of {file}")
        if "name" not in entry:
            raise InvalidInput(f"a variant of {file} has no name", hint="name: short")
    for key in ("message", "check"):
        if key in data:
            _require_text(data[key], f"{key} of {file}")
    number = data.get("repeat", 1)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInput(f"repeat of {file} is not a number above 0: {number!r:.40}", hint="repeat: 3")
    return data


def _require_keys(data: Any, keys: set[str], where: str) -> None:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where} has no `key: value` lines", hint=f"its keys are {', '.join(sorted(keys))}")
    unknown = [str(key) for key in cast("Mapping[Any, Any]", data) if key not in keys]
    if unknown:
        raise InvalidInput(
            f"{where} has unknown keys: {', '.join(unknown)}", hint=f"its keys are {', '.join(sorted(keys))}"
        )


def _require_text(value: object, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{where} is not a text: {value!r:.40}", hint="write a text, in quotes if needed")


def _read_variant(entry: Mapping[str, str], file: Path, settings: Settings) -> Variant:
    from bough.conversation.explore import Variant

    path = entry.get("agent")
    spec = None if path is None else agent_file.resolve_agent(file.parent / path, settings)
    return Variant(
        entry["name"],
        entry.get("message"),
        model=entry.get("model"),
        system_prompt=entry.get("system_prompt"),
        agent=spec,
    )


async def _choose_session(store: EventStore, plan: _Plan, source: str, resume: bool, given_id: str | None) -> UUID:
    """Return the session to continue, or a new one.

    Raises:
        NotFound: There is no session with these arguments.
        InvalidInput: `--session` is not an id.
    """
    if given_id is not None:
        try:
            return UUID(given_id)
        except ValueError:
            raise InvalidInput(f"--session {given_id!r:.60} is not an id", hint="`bough try` prints it") from None
    # Sessions are numbered, so that neither a tag nor a file has to remember the latest one.
    number = 0
    while await _has_begun(store, plan, plan.name_session(source, number)):
        number += 1
    if not resume:
        return plan.name_session(source, number)
    if number == 0:
        raise NotFound("no session with these variants and this check", hint="leave --resume out to begin one")
    return plan.name_session(source, number - 1)


async def _has_begun(store: EventStore, plan: _Plan, session: UUID) -> bool:
    """Whether a session has a source of its own, or a branch."""
    from bough.conversation.explore import ExploreRequest

    request = ExploreRequest(variants=plan.variants, session=session, repeats=plan.repeats)
    branches = [
        request.make_branch_id(variant.name, repeat)
        for variant in plan.variants
        for repeat in range(1, plan.repeats + 1)
    ]
    for id in (_name_source(session), *branches):
        with suppress(NotFound):
            await store.get(id)
            return True
    return False


def _name_source(session: UUID) -> UUID:
    """Return the id of the conversation from which a session without one starts."""
    from uuid import uuid5

    return uuid5(session, "source")


async def _delete_others(source: AsyncConversation, tried: Exploration) -> None:
    from bough.conversation import AsyncConversation

    for branch in tried.branches:
        if tried.winner is not None and branch.conversation != tried.winner.conversation:
            with suppress(NotFound):
                await AsyncConversation.delete(branch.conversation, store=source.store, settings=source.settings)


def _report(tried: Exploration, *, keep: str) -> Report:
    winner = tried.winner
    steps: list[str] = []
    if winner is not None:
        steps = [f"bough conv apply {short(winner.conversation)}", f"bough conv show {short(winner.conversation)}"]
    elif tried.branches:
        steps = [f"bough conv show {short(tried.branches[0].conversation)}"]
    has_ended = all(branch.status == "finished" and not branch.error for branch in tried.branches)
    is_good = has_ended if tried.check is None else winner is not None
    blocks: list[Block] = [_make_table(tried.branches), *_summarize(tried)]
    if keep == "winner" and winner is not None:
        blocks.append(line(("the other branches are deleted", "dim")))
    return Report(
        command="try", data=describe_exploration(tried), blocks=blocks, next=tuple(steps), exit_code=int(not is_good)
    )


def _report_interrupted(source: AsyncConversation, plan: _Plan, session: UUID, progress: _Progress) -> Report:
    from bough.conversation.explore import Exploration, VariantResult

    ran = [branch for branch in progress.branches.values() if branch.status != "queued"]
    results = [
        VariantResult(name=variant.name, branches=branches)
        for variant in plan.variants
        if (branches := tuple(branch for branch in ran if branch.variant == variant.name))
    ]
    tried = Exploration(
        session=session,
        source=source.id,
        at=source.state.head,
        check=plan.check,
        variants=tuple(results),
        winner=None,
    )
    count = len(plan.variants) * plan.repeats
    done = sum(branch.status not in ("paused", *_RUNNING) for branch in ran)
    blocks: list[Block] = [_make_table(ran)] if ran else []
    return Report(
        command="try",
        data=describe_exploration(tried),
        blocks=[*blocks, line(("interrupted ", "warn"), (f"{done} of {count} branches are done", "dim"))],
        next=("bough try … --resume",),
        exit_code=OUTCOMES["interrupted"].exit_code,
    )


def describe_exploration(tried: Exploration) -> dict[str, Any]:
    """Return the result as JSON."""
    winner = tried.winner
    return {
        "session": str(tried.session),
        "source": str(tried.source),
        "at": tried.at,
        "check": tried.check,
        "variants": [
            {
                "name": variant.name,
                "runs": len(variant.branches),
                "passed": variant.passed,
                "rate": variant.rate,
                "branches": [_describe_branch(branch) for branch in variant.branches],
            }
            for variant in tried.variants
        ],
        "winner": None if winner is None else {"variant": winner.variant, "conversation": str(winner.conversation)},
    }


def _describe_branch(branch: TriedBranch) -> dict[str, Any]:
    return {
        "conversation": str(branch.conversation),
        "repeat": branch.repeat,
        "status": branch.status,
        "passed": branch.passed,
        "exit_code": None if branch.check is None else branch.check.exit_code,
        "steps": branch.steps,
        "seconds": round(branch.seconds, 3),
        "cost_usd": branch.usage.cost_usd,
        "usage": branch.usage.model_dump(mode="json"),
        "files": None if branch.files is None else branch.files._asdict(),
        "error": branch.error,
    }


def _make_table(branches: Sequence[TriedBranch]) -> Table:
    shows_cost = any(branch.usage.cost_usd for branch in branches)
    shows_repeat = any(branch.repeat > 1 for branch in branches)
    head = ("variant", "check", "status", "steps", "tokens", *(("cost",) if shows_cost else ()), "time", "files")
    return Table(
        head=(*head, "branch"),
        rows=tuple(_make_row(branch, shows_cost=shows_cost, shows_repeat=shows_repeat) for branch in branches),
        flexible=(0,),
        right=frozenset({3, 4, 5, 6} if shows_cost else {3, 4, 5}),
        drop=(5, 4, 3) if shows_cost else (4, 3),
    )


def _make_row(branch: TriedBranch, *, shows_cost: bool, shows_repeat: bool) -> tuple[Span, ...]:
    from bough.conversation.explore import count_tokens

    cost = "" if branch.usage.cost_usd is None else f"{branch.usage.cost_usd:.4f} USD"
    files = "?" if branch.files is None else f"+{branch.files.added} ~{branch.files.changed} -{branch.files.removed}"
    return (
        (f"{branch.variant} {branch.repeat}" if shows_repeat else branch.variant, ""),
        _describe_verdict(branch),
        (branch.status.replace("waiting_for_confirmation", "waiting"), "" if branch.status == "finished" else "warn"),
        (str(branch.steps), ""),
        (str(count_tokens(branch.usage)), ""),
        *(((cost, ""),) if shows_cost else ()),
        (f"{branch.seconds:.1f} s", "dim"),
        (files, "dim"),
        (short(branch.conversation), "id"),
    )


def _describe_verdict(branch: TriedBranch) -> Span:
    if branch.check is None:
        style: Style = "bad" if branch.error else "dim"
        return ("error" if branch.error else "not run"), style
    if branch.check.passed:
        return "passed", "good"
    return ("timed out" if branch.check.timed_out else "failed"), "bad"


def _summarize(tried: Exploration) -> list[Line]:
    """Return what follows the table: errors, the share of each repeated variant, and the winner."""
    lines: list[Line] = []
    for branch in tried.branches:
        if branch.error:
            lines.append(line((f"{branch.variant} {branch.repeat}: ", "bad"), branch.error, hang=2))
    if any(len(variant.branches) > 1 for variant in tried.variants) and tried.check is not None:
        lines += [
            line(f"{variant.name}  ", (f"{variant.passed} of {len(variant.branches)} passed", "dim"))
            for variant in tried.variants
        ]
    winner = tried.winner
    if winner is not None:
        lines.append(line("best: ", (winner.variant, "good"), "  branch ", (short(winner.conversation), "id")))
    elif tried.check is not None:
        lines.append(line(("nothing passed", "bad")))
    return lines
