"""Methods of a conversation that try variants of the work, and search for the step that broke the files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID, uuid5

from bough.conversation.agent import AgentLike
from bough.conversation.bisect import Bisection, FileJudge, find_tool, list_candidates, search
from bough.conversation.check import CHECK_SECONDS, RunCheck
from bough.conversation.explore import BranchSource, Exploration, Explorer, ExploreRequest, OnBranch, Variant
from bough.conversation.file_methods import FileMethods
from bough.conversation.fork.request import ForkOptions, find_cut
from bough.conversation.log.turns import Turn
from bough.events.store import Cut
from bough.types import new_id

_MESSAGES = UUID("6a0d0f5c-6f4e-5f0e-9d53-0f8c1c9d4b7a")
"""UUID namespace for the ids of the messages of branches."""


class ExploreMethods(FileMethods):
    """Methods of `AsyncConversation` that run branches, and checks on past files."""

    @property
    @abstractmethod
    def id(self) -> UUID:
        """The id of the conversation."""

    @abstractmethod
    async def fork(self, *, agent: AgentLike | None = None, **options: Unpack[ForkOptions]) -> ExploreMethods:
        """Fork the conversation and return the fork."""

    @abstractmethod
    async def _run_until_checked(self, check: RunCheck | None) -> None: ...

    async def explore(
        self,
        variants: Sequence[Variant],
        *,
        message: str | None = None,
        check: str | None = None,
        repeats: int = 1,
        at: Cut | Turn | None = None,
        jobs: int = 4,
        check_timeout: float = CHECK_SECONDS,
        session: UUID | None = None,
        queue: str | None = None,
        on_update: OnBranch | None = None,
    ) -> Exploration:
        """Try variants of the work, each in a fork with separate files, and test each by a check.

        With a broker, the branches run as tasks, in this process or in workers; otherwise they run here. A repeated
        call with the same `session` continues: branches that are done do not run again. If a variant cannot run, its
        branches have an error, and the other variants run. If the call is cancelled, the running branches are paused.

        Args:
            message: The message of each branch whose variant has none; None continues the work that is left at `at`.
            check: A bash command that tests the files of a branch in the sandbox when its agent has finished. Exit code
                0 passes. Its changes of kept files are removed.
            repeats: How many branches each variant has.
            at: Where the branches start, as for `fork`; None for the head.
            jobs: How many branches run at the same time.
            check_timeout: Seconds after which the check is killed and has failed.
            session: None for a new one.
            queue: The queue of the tasks; None for the queue of the agent.
            on_update: Called whenever a branch reaches another state.

        Raises:
            InvalidInput: There are no variants, two have one name, or a number is out of range.
            NotFound: `at` names an event that is not in this log.
        """
        request = ExploreRequest(
            variants=tuple(variants),
            message=message,
            check=check,
            repeats=repeats,
            jobs=jobs,
            check_timeout=check_timeout,
            session=new_id() if session is None else session,
            queue=queue,
        )
        journal = self._journal
        await journal.catch_up()
        cut = None if at is None else (await find_cut(journal, at, pending="close"))[0].at
        environment = self._parts.environment

        async def fork(variant: Variant, options: ForkOptions) -> Any:
            branch = await self.fork(agent=variant.agent, **options)
            # Recorded before the branch runs: its changes are later applied as the difference from these files.
            await branch._keep_fork_files()
            return branch

        async def run_here(branch: Any, text: str | None, run_check: RunCheck | None) -> None:
            # With an id that depends only on the branch: an interrupted branch already has the message.
            if text is not None:
                await branch.send_message(text, id=uuid5(_MESSAGES, str(branch.id)))
            await branch._run_until_checked(run_check)

        source = BranchSource(
            id=self.id,
            head=journal.durable,
            store=journal.store,
            file_store=environment.file_store,
            fork=fork,
            run_here=run_here,
            delegation=environment.delegation,
        )
        return await Explorer(source, request, cut, on_update or _ignore).run()

    async def bisect(
        self,
        check: str,
        *,
        good: Cut | Turn | None = None,
        bad: Cut | Turn | None = None,
        check_timeout: float = CHECK_SECONDS,
    ) -> Bisection:
        """Find the step of this conversation that broke its files, by a binary search. Writes nothing to the log.

        The check runs at most 2 + log2(steps) times, in the sandbox, in a copy of the workspace with the files that the
        step left.

        Args:
            check: A bash command. It exits with 0 for good files, 1 to 124 for bad ones, and 125 if it cannot judge
                them. A timeout counts as bad.
            good: An event at which the files were good; None for the first one.
            bad: An event at which they were bad; None for the head.

        Raises:
            NotFound: No step in between changed files that were kept.
            InvalidInput: The check fails before the first step, or cannot judge the last files.
            ExecutorError: The check cannot be run.
        """
        run_check = RunCheck(command=check, timeout_seconds=check_timeout)
        journal = self._open_log
        await journal.catch_up()
        start = 0 if good is None else (await find_cut(journal, good, pending="close"))[0].at
        stop = journal.durable if bad is None else (await find_cut(journal, bad, pending="close"))[0].at
        candidates = await list_candidates(journal.store, self.id, start, stop)
        environment, workspace = self._parts.environment, self._workspace_folder()
        judge = FileJudge(run_check, environment.executor, workspace, environment.settings.home)
        try:
            result = await search(candidates, judge.judge)
        finally:
            await judge.aclose()
        if result.first_bad is None:
            return Bisection(seq=None, checks=judge.checks)
        step = candidates[result.first_bad]
        return Bisection(
            seq=step.seq,
            tool_call_id=step.tool_call_id,
            tool=await find_tool(journal.store, self.id, step),
            checks=judge.checks,
            changes=await self._compare_trees(step.before, step.tree),
            start_checked=result.start_checked,
            unjudged=tuple(candidates[index].seq for index in result.unjudged),
        )


def _ignore(branch: object) -> None:
    """Do nothing."""
