"""The check of a run: a command that runs whenever the agent has finished."""

from __future__ import annotations

from collections.abc import Callable

from bough.conversation.check import MAX_OUTPUT_BYTES, RunCheck, describe_result, run_in_folder
from bough.conversation.log.journal import Journal
from bough.conversation.run.keeper import Keeper
from bough.conversation.run.loop import REMINDER
from bough.errors import PermissionDenied
from bough.events.model import CheckRan, UserMessage
from bough.execution.base import CodeExecutor, Guards


class CheckAtEnd:
    """Runs the check of one run, whenever its agent has finished.

    Args:
        guards: Returns the paths that the check must not change.
        keeper: Keeps the files of the workspace; None if they are not kept.
    """

    def __init__(
        self,
        check: RunCheck,
        journal: Journal,
        executor: CodeExecutor,
        guards: Callable[[], Guards],
        keeper: Keeper | None,
    ) -> None:
        self._check = check
        self._journal = journal
        self._executor = executor
        self._guards = guards
        self._keeper = keeper

    async def run(self) -> None:
        """Run the check and record its result. A failed check with `until` also sends a message to the agent.

        Files that the check writes do not count as the agent's: in a branch of an exploration they are removed, in any
        other conversation they are recorded as changes from outside.

        Raises:
            PermissionDenied: The workspace is read-only.
            ExecutorError: The command cannot be run here.
        """
        check, state = self._check, self._journal.state
        if state.workspace_policy == "readonly":
            raise PermissionDenied("a check may write, and the workspace is read-only", hint="fork with workspace=copy")
        tree = None if self._keeper is None else await self._keeper.record_present()
        result = await run_in_folder(
            check.command,
            check.timeout_seconds,
            executor=self._executor,
            folder=state.workspace,
            guards=self._guards(),
            name=f"check-{self._journal.cid}",
        )
        if self._keeper is not None and result.changed is not False:
            if check.session is not None and tree is not None:
                await self._keeper.restore_tree(tree, self._guards())
            else:
                await self._keeper.record_present()
        # After the files: a cut that has the result of the check also has the files that were checked.
        event = describe_result(check, result, tree)
        self._journal.stage(event)
        if check.until and not event.passed:
            self._journal.stage(UserMessage.text(_describe_failure(event), sender=REMINDER))


def _describe_failure(event: CheckRan) -> str:
    """Return the message that sends an agent back to work."""
    if event.timed_out:
        failure = "did not end in time"
    elif event.exit_code is None:
        failure = f"was killed: {event.killed_by}"
    else:
        failure = f"failed with exit code {event.exit_code}"
    output = "\n".join(text.strip() for text in (event.stdout, event.stderr) if text.strip())
    shown_output = f" The end of its output:\n\n{output[-MAX_OUTPUT_BYTES:]}" if output else " It printed nothing."
    return f"The check `{event.command}` {failure}. Continue until it passes.{shown_output}"
