"""Tries variants of the work: runs branches of one conversation, each with separate files, and tests each by one check.

The id of a branch is computed from the session, the variant and the number of the repeat. So a repeated call with the
same session continues the exploration, and runs no finished branch twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from bough.agents.delegation_protocol import Delegation
from bough.conversation.check import CHECK_SECONDS, RunCheck, check_command
from bough.conversation.fork.request import ForkOptions, ForkOverrides
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import NOTHING_USED, State
from bough.errors import BoughError, InvalidInput, NotFound
from bough.events.draft import parse_id
from bough.events.model import CheckRan, ErrorRaised, FilesKept, ModelResponded, Usage
from bough.events.record import Status
from bough.events.store import EventStore
from bough.files import FileStore, count_changes, diff
from bough.types import new_id, require_type

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from bough.conversation.agent import AgentLike

MAX_BRANCHES: Final = 1000
SESSION_TAG: Final = "try"
VARIANT_TAG: Final = "variant"
REPEAT_TAG: Final = "repeat"
MAX_NAME_CHARACTERS: Final = 60

BranchStatus: TypeAlias = Status | Literal["queued"]
"""The status of a branch's conversation; `queued` before it has one."""


@dataclass(frozen=True)
class Variant:
    """One way to do the work.

    Attributes:
        name: Names the branches.
        message: The message of the branch; None for the message of the exploration.
        agent: Replaces the agent of the source.
        overrides: As for `fork`. `model` and `system_prompt` set two of them.
    """

    name: str
    message: str | None = None
    model: str | Model | None = field(default=None, kw_only=True)
    system_prompt: str | None = field(default=None, kw_only=True)
    agent: AgentLike | None = field(default=None, kw_only=True)
    overrides: ForkOverrides | None = field(default=None, kw_only=True)


class FileCounts(NamedTuple):
    """How many files a branch added, changed and removed."""

    added: int = 0
    changed: int = 0
    removed: int = 0


@dataclass(frozen=True, kw_only=True)
class TriedBranch:
    """One run of a variant.

    Attributes:
        conversation: The id of the branch, a fork of the source with separate files.
        repeat: Counts the branches of the variant, from 1.
        check: The result of the check; None if it has not run.
        seconds: From the first event of the branch to its last.
        files: None if the files of the branch were not kept.
        error: Why the branch could not run or failed; empty otherwise.
    """

    conversation: UUID
    variant: str
    repeat: int
    status: BranchStatus = "queued"
    check: CheckRan | None = None
    usage: Usage = NOTHING_USED
    steps: int = 0
    seconds: float = 0.0
    files: FileCounts | None = None
    error: str = ""

    @property
    def passed(self) -> bool | None:
        """Whether the check passed; None if it has not run."""
        return None if self.check is None else self.check.passed


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """The branches of one variant."""

    name: str
    branches: tuple[TriedBranch, ...]

    @property
    def passed(self) -> int:
        """How many branches passed the check."""
        return sum(branch.passed is True for branch in self.branches)

    @property
    def rate(self) -> float:
        """The share of the branches that passed."""
        return self.passed / len(self.branches)

    @property
    def cost_usd(self) -> float | None:
        """Dollars of an average branch; None if a price is unknown."""
        prices = [branch.usage.cost_usd for branch in self.branches]
        return None if None in prices else sum(price or 0.0 for price in prices) / len(prices)

    @property
    def tokens(self) -> int:
        """Tokens of an average branch."""
        return sum(count_tokens(branch.usage) for branch in self.branches) // len(self.branches)


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """The result of trying variants.

    Attributes:
        session: Pass it to `explore` to continue the exploration.
        at: How many events of the source the branches share.
        winner: The cheapest branch that passed, of the variant that passed most often; None if nothing passed.
    """

    session: UUID
    source: UUID
    at: int
    check: str | None
    variants: tuple[VariantResult, ...]
    winner: TriedBranch | None

    @property
    def branches(self) -> tuple[TriedBranch, ...]:
        """All branches, by variant and repeat."""
        return tuple(branch for variant in self.variants for branch in variant.branches)


OnBranch: TypeAlias = Callable[[TriedBranch], None]


def count_tokens(usage: Usage) -> int:
    """Return the tokens of input and output together."""
    return usage.input_tokens + usage.output_tokens


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """The arguments of `explore`, checked; see `AsyncConversation.explore`."""

    variants: tuple[Variant, ...]
    message: str | None = None
    check: str | None = None
    repeats: int = 1
    jobs: int = 4
    check_timeout: float = CHECK_SECONDS
    session: UUID = field(default_factory=new_id)
    queue: str | None = None

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if not names:
            raise InvalidInput("there are no variants", hint='give one, for example Variant("short", "Be brief.")')
        for name in names:
            require_type(name, str, "the name of a variant", 'for example Variant("short")')
            if not name.strip() or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
                raise InvalidInput(f"invalid name of a variant: {name!r:.80}", hint="give 1 to 60 printable characters")
            if names.count(name) > 1:
                raise InvalidInput(f"two variants have the name {name!r}", hint="give each a different name")
        for variant in self.variants:
            require_type(variant.message, (str, NoneType), "the message of a variant", "give a text")
        require_type(self.message, (str, NoneType), "message", "give a text")
        if self.check is not None:
            check_command(self.check)
        for name, bound in (("repeats", MAX_BRANCHES), ("jobs", MAX_BRANCHES)):
            number: object = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= bound:
                raise InvalidInput(f"invalid {name}: {number!r:.40}", hint=f"give a number from 1 to {bound}")
        if self.repeats * len(names) > MAX_BRANCHES:
            raise InvalidInput(f"{self.repeats * len(names)} branches are too many", hint=f"at most {MAX_BRANCHES}")
        object.__setattr__(self, "session", parse_id(self.session))

    def make_branch_id(self, variant: str, repeat: int) -> UUID:
        """Return the id of a branch."""
        return uuid5(self.session, f"{variant}/{repeat}")

    def make_check(self, variant: str, repeat: int) -> RunCheck | None:
        """Return the check of a branch."""
        if self.check is None:
            return None
        return RunCheck(
            command=self.check,
            timeout_seconds=self.check_timeout,
            session=str(self.session),
            variant=variant,
            repeat=repeat,
        )

    def make_options(self, variant: Variant, repeat: int, at: int) -> ForkOptions:
        """Return the arguments with which `fork` makes a branch, without the agent."""
        overrides: Any = dict(variant.overrides or {})
        for name in ("model", "system_prompt"):
            if (value := getattr(variant, name)) is not None:
                overrides[name] = value
        tags = {SESSION_TAG: str(self.session), VARIANT_TAG: variant.name, REPEAT_TAG: str(repeat)}
        return {
            "id": self.make_branch_id(variant.name, repeat),
            "at": at,
            "workspace": "copy",
            # Without the number of repeats: a resumed session with more repeats must make the same request.
            "title": f"{variant.name} {repeat}",
            "tags": tags,
            "overrides": overrides,
            "reason": "try",
        }


class BranchSource(NamedTuple):
    """The conversation whose branches an explorer runs, and how to run them.

    Attributes:
        fork: Makes and opens a branch, or opens it if it exists.
        run_here: Sends a message to an open branch and runs it in this process.
        delegation: Runs branches as tasks; None runs them in this process.
    """

    id: UUID
    head: int
    store: EventStore
    file_store: FileStore | None
    fork: Callable[[Variant, ForkOptions], Awaitable[Any]]
    run_here: Callable[[Any, str | None, RunCheck | None], Awaitable[None]]
    delegation: Delegation | None


class Explorer:
    """Runs the branches of one exploration.

    Args:
        on_update: Called whenever a branch reaches another state.
    """

    def __init__(self, source: BranchSource, request: ExploreRequest, at: int | None, on_update: OnBranch) -> None:
        self._source = source
        self._request = request
        self._at = at
        self._on_update = on_update
        self._slots = asyncio.Semaphore(request.jobs)

    async def run(self) -> Exploration:
        """Run every branch that is not done. If this is cancelled, the running branches are paused."""
        request = self._request
        at = await self._choose_cut()
        plan = [(variant, repeat) for variant in request.variants for repeat in range(1, request.repeats + 1)]
        tasks = [asyncio.create_task(self._run_branch(variant, repeat, at)) for variant, repeat in plan]
        try:
            branches = await asyncio.gather(*tasks)
        except BaseException:
            # Awaited, because a cancelled branch still records that it is paused.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        variants = tuple(
            VariantResult(name=variant.name, branches=tuple(b for b in branches if b.variant == variant.name))
            for variant in request.variants
        )
        return Exploration(
            session=request.session,
            source=self._source.id,
            at=at,
            check=request.check,
            variants=variants,
            winner=choose_winner(variants),
        )

    async def _choose_cut(self) -> int:
        """Return the cut of the branches: the requested one, else that of an existing branch, else the head."""
        if self._at is not None:
            return self._at
        # All branches of a session have the same cut, although the source may have new events since the first branch.
        for variant in self._request.variants:
            with suppress(NotFound):
                record = await self._source.store.get(self._request.make_branch_id(variant.name, 1))
                if record.forked_at is not None:
                    return record.forked_at
        return self._source.head

    async def _run_branch(self, variant: Variant, repeat: int, at: int) -> TriedBranch:
        id = self._request.make_branch_id(variant.name, repeat)
        branch = TriedBranch(conversation=id, variant=variant.name, repeat=repeat)
        check = self._request.make_check(variant.name, repeat)
        error = ""
        async with self._slots:
            # Read before the fork: a finished branch is not opened, even if its variant was changed since.
            existing = await self._read(branch)
            if existing is not None and self._is_done(existing):
                self._on_update(existing)
                return existing
            try:
                self._on_update(replace(branch, status="running"))
                opened = await self._source.fork(variant, self._request.make_options(variant, repeat, at))
                message = self._request.message if variant.message is None else variant.message
                error = await self._run_message(opened, message, check)
            except BoughError as failure:
                error = f"{failure.message}; {failure.hint}" if failure.hint else failure.message
            finally:
                with suppress(BoughError):
                    branch = await self._read(branch) or replace(branch, status="error")
                if error and branch.check is None:
                    branch = replace(branch, error=error)
                self._on_update(branch)
        return branch

    async def _run_message(self, opened: Any, message: str | None, check: RunCheck | None) -> str:
        """Run an open branch and close it. Returns the error with which its task ended; empty without one."""
        delegation = self._source.delegation
        if delegation is None:
            async with opened:
                await self._source.run_here(opened, message, check)
            return ""
        # Closed first: the task opens the branch again, perhaps in another process.
        await opened.aclose()
        as_json = None if check is None else check.to_json()
        child = await delegation.run(opened.id, message, f"try:{opened.id}", as_json, queue=self._request.queue)
        return child.error or ""

    def _is_done(self, branch: TriedBranch) -> bool:
        if self._request.check is None:
            return branch.status == "finished"
        return branch.check is not None

    async def _read(self, branch: TriedBranch) -> TriedBranch | None:
        """Return a branch as its log describes it; None if it does not exist. O(its events)."""
        return await read_branch(self._source.store, self._source.file_store, branch, self._request)


async def read_branch(
    store: EventStore, file_store: FileStore | None, branch: TriedBranch, request: ExploreRequest
) -> TriedBranch | None:
    """Return a branch as its log describes it; None if it does not exist. O(its events)."""
    journal = Journal(store, branch.conversation)
    try:
        try:
            await journal.catch_up()
        except NotFound:
            return None
        state, trees, steps, check, failure = journal.state, _BranchTrees(), 0, None, ""
        first_time = last_time = None
        async for stored in store.read(branch.conversation, state.base):
            first_time, last_time = first_time or stored.ts, stored.ts
            match stored.event:
                # Results of other checks, and of checks that ran during a run, do not count.
                case CheckRan() as event if event.session == str(request.session) and event.command == request.check:
                    check = event
                case ErrorRaised() as event:
                    failure = event.message
                case ModelResponded():
                    steps, failure = steps + 1, ""
                case FilesKept() as event:
                    trees.add(event)
                case _:
                    pass
        return replace(
            branch,
            # The check is a branch's last step: if it ran, a kill right after it has left the status of a run.
            status="finished" if check is not None and state.status == "running" else state.status,
            check=check,
            usage=state.own,
            steps=steps,
            seconds=0.0 if first_time is None or last_time is None else (last_time - first_time).total_seconds(),
            files=await asyncio.to_thread(trees.count, file_store),
            error=failure if state.status in ("error", "paused") and failure else _explain_status(state),
        )
    finally:
        await journal.aclose()


def _explain_status(state: State) -> str:
    if state.waiting:
        tools = sorted({str(call.get("tool") or "a call") for call in state.waiting.values()})
        return f"{', '.join(tools)} waits for a decision"
    if state.limit is not None:
        return f"the limit {state.limit} is reached"
    return ""


class _BranchTrees:
    """The files of a branch before its first step, and after its last."""

    def __init__(self) -> None:
        self._before: str | None = None
        self._after: str | None = None
        self._has_step = False
        self._is_complete = True

    def add(self, event: FilesKept) -> None:
        if event.tree is None:
            self._is_complete = False
        if event.by == "tool" and not self._has_step:
            self._has_step, self._before = True, event.before
        if event.by == "tool":
            self._after = event.tree

    def count(self, file_store: FileStore | None) -> FileCounts | None:
        """Return how many files the steps changed; None if that is unknown. Blocks."""
        if not self._is_complete or file_store is None:
            return None
        if not self._has_step or self._after is None or self._before == self._after:
            return FileCounts()
        try:
            with file_store.objects() as objects:
                counts = count_changes(diff(objects, self._before, self._after))
        except BoughError:  # the files are on another machine
            return None
        return FileCounts(counts["added"], counts["changed"] + counts["mode"], counts["removed"])


def choose_winner(variants: Sequence[VariantResult]) -> TriedBranch | None:
    """Return the cheapest branch that passed, of the best variant; None if no branch passed.

    The best variant has the highest rate; among several, it is the cheapest one, then the first one.
    """
    passing = [variant for variant in variants if variant.passed]
    if not passing:
        return None
    has_prices = all(variant.cost_usd is not None for variant in passing)

    def rank(variant: VariantResult) -> tuple[float, float]:
        return -variant.rate, (variant.cost_usd or 0.0) if has_prices else variant.tokens

    passed = [branch for branch in min(passing, key=rank).branches if branch.passed]
    return min(passed, key=lambda branch: (branch.usage.cost_usd or 0.0, count_tokens(branch.usage)))
