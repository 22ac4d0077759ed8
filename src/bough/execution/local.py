"""The default executor: runs code in the strongest sandbox that works on this machine, or refuses.

Source: ADK (`LocalSandboxCodeExecutor`).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import partial

from bough.cancellation import finish
from bough.errors import InvalidInput, SandboxUnavailable, Unavailable
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutorMixin, Isolation
from bough.execution.packages import Packages
from bough.execution.process.child import ChildProcess, ConnectedChild
from bough.execution.process.process import run_process
from bough.execution.process.result import make_timed_out
from bough.execution.process.run_directory import RunDirectory
from bough.execution.request import Plan, plan, refuse_state
from bough.execution.sandbox.bubblewrap import BubblewrapRung
from bough.execution.sandbox.landlock import LandlockRung, serving_command
from bough.execution.sandbox.preloaded import PreloadedSupervisor
from bough.execution.sandbox.rung import Rung, RungReport, list_interpreters
from bough.execution.value_types import check_kinds
from bough.execution.warm.stateful import Sessions
from bough.execution.warm.warm import WarmSandboxes
from bough.execution.warm.zygote import Key


class LocalSandboxCodeExecutor(CodeExecutorMixin):
    """Runs code in a sandbox on this machine: bubblewrap, else Landlock, else it refuses.

    Which one works is tested by running a program in each, once, before the first run. The isolation that
    was reached is in every result; nothing is ever run below `min_isolation`.

    Args:
        min_isolation: The weakest acceptable isolation.
        default_timeout_seconds: For requests without a timeout.
        stateful: Whether Python code of one `execution_id` runs in one persistent interpreter; needs bubblewrap.
        packages: A virtual environment, or a folder with installed packages, that programs can import and cannot
            change; a relative path counts from the working folder of this process, now. They are at `/packages`, the
            last entry of `PYTHONPATH`. Python runs in the version that the packages need. `.pth` files are not read, so
            packages in development are missing.

    Raises:
        InvalidInput: `packages` is missing or has no packages, or they are of another platform, or of a version of
            Python that no sandbox here has.

    Attributes:
        packages: The environment whose packages programs can import; None without one.
        supervisor: Forks the supervisors of runs under Landlock.
        counts: How many runs were `cold`, `warm` and `stateful`, and how many `zygotes` and `sessions` were started.
    """

    name = "local-sandbox"

    def __init__(
        self,
        *,
        min_isolation: Isolation = Isolation.LANDLOCK,
        default_timeout_seconds: float = 30.0,
        stateful: bool = False,
        packages: str | os.PathLike[str] | None = None,
    ) -> None:
        self.stateful = stateful
        self.default_timeout_seconds = default_timeout_seconds
        self.min_isolation = min_isolation
        self.packages = None if packages is None else Packages.find(packages)
        interpreters = list_interpreters() if self.packages is None else self.packages.find_interpreters()
        self._rungs: Sequence[Rung] = (
            BubblewrapRung(interpreters=interpreters),
            LandlockRung(interpreters=interpreters),
        )
        self._chosen: Rung | None = None
        self._warm: WarmSandboxes | None = None
        self._sessions: Sessions | None = None
        self._lost: OrderedDict[Key, str] = OrderedDict()
        self._home: asyncio.AbstractEventLoop | None = None
        self._choosing = asyncio.Lock()
        self._run_directory = RunDirectory()
        self.supervisor = PreloadedSupervisor(serving_command)
        self._closed = False
        self.counts: Counter[str] = Counter()

    @property
    def isolation(self) -> Isolation:
        """The isolation that was reached; before the first run, the required minimum."""
        return self.min_isolation if self._chosen is None else self._chosen.isolation

    async def probe(self) -> tuple[RungReport, ...]:
        """Test every rung, strongest first, by running a program in it; changes nothing."""
        return tuple(await asyncio.gather(*(rung.probe() for rung in self._rungs)))

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in the chosen sandbox. Safe for concurrent use; cancelling kills the whole tree.

        Raises:
            InvalidInput: The request is invalid; nothing was run.
            NotSupported: It is for a persistent interpreter, which needs bubblewrap; nothing was run.
            SandboxUnavailable: No rung of at least `min_isolation` works here; nothing was run.
            ExecutorError: The program could not be started.
        """
        if self._closed:
            raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
        checked = await self._plan(request)
        return await finish(self._run(checked), cancel=True)

    async def _plan(self, request: CodeExecutionInput) -> Plan:
        """Check a request, with the packages of the environment."""
        if self.packages is not None:
            check_kinds(request)
            if not self.packages.is_current:
                self.packages = await asyncio.to_thread(self.packages.find_again)
            request = self.packages.add_to(request)
        return plan(request, default_timeout_seconds=self.default_timeout_seconds)

    async def _run(self, checked: Plan) -> CodeExecutionResult:
        rung = await self._rung()
        if checked.timeout_seconds == 0:
            return make_timed_out(checked, isolation=rung.isolation)
        if checked.rules:
            return await self._run_online(checked, rung)
        execution_id = checked.request.execution_id
        at_home = self._home is asyncio.get_running_loop()
        if execution_id is not None and self._sessions is not None and self._is_stateful(checked):
            if not at_home:
                raise Unavailable(
                    "the executor keeps its interpreters in another event loop",
                    hint="use it either with `await` or without, or make another executor",
                )
            return await self._sessions.run(checked)
        if self._sessions is None:
            refuse_state(checked.request)
        if self._warm is None or execution_id is None or not at_home:
            return await self._run_cold(checked, rung)
        result = await self._warm.run(checked)
        if result is None:
            result = await self._run_cold(checked, rung)
            self._warm.note_cold_run(checked)
        else:
            self.counts["warm"] += 1
        return result

    def _is_stateful(self, checked: Plan) -> bool:
        """Whether a run is for the persistent interpreter."""
        requested = checked.request.stateful
        return self.stateful if requested is None else requested

    async def warm_up(self, request: CodeExecutionInput) -> bool:
        """Start a warm sandbox for runs like `request`, which needs an `execution_id`, and wait until it is ready.

        Returns whether it exists now; False on a rung that cannot keep one warm.
        """
        checked = await self._plan(request)
        await self._rung()
        if self._warm is None or request.execution_id is None or self._home is not asyncio.get_running_loop():
            return False
        self._warm.expect(checked)
        await self._warm.settle()
        return self._warm.has(checked)

    async def _run_online(self, checked: Plan, rung: Rung) -> CodeExecutionResult:
        """Run with access to listed domains, which needs a network namespace, and is never warm or stateful."""
        if not isinstance(rung, BubblewrapRung):
            raise SandboxUnavailable(
                "Network by domains needs bubblewrap.", hint="apt-get install bubblewrap, or ask for no network."
            )
        if self._is_stateful(checked) and checked.request.execution_id is not None:
            raise InvalidInput("A stateful run has no network.", hint="Run it without an execution_id.")
        return await self._run_cold(checked, rung)

    async def _run_cold(self, checked: Plan, rung: Rung) -> CodeExecutionResult:
        self.counts["cold"] += 1
        return await run_process(
            checked,
            run_directory=self._run_directory,
            launch=rung.launch,
            isolation=rung.isolation,
            identity=rung.identity(checked),
            child=self.supervisor.child if isinstance(rung, LandlockRung) else ChildProcess,
        )

    async def run_connected(self, request: CodeExecutionInput, *, stdin: int, stdout: int) -> CodeExecutionResult:
        """Run `request` with its input and output connected to descriptors of this process, which stay open.

        Raises:
            InvalidInput: The request is invalid; nothing was run.
            SandboxUnavailable: bubblewrap, the only rung that passes descriptors, does not work here.
        """
        checked = await self._plan(request)
        rung = await self._rung()
        if not isinstance(rung, BubblewrapRung):
            raise SandboxUnavailable("A program that stays needs bubblewrap.", hint="apt-get install bubblewrap")
        return await run_process(
            checked,
            run_directory=self._run_directory,
            launch=rung.launch,
            isolation=rung.isolation,
            identity=rung.identity(checked),
            child=partial(ConnectedChild, stdin=stdin, stdout=stdout),
        )

    async def healthy(self) -> bool:
        """Whether a rung of at least `min_isolation` works."""
        if self._closed:
            return False
        try:
            await self._rung()
        except SandboxUnavailable:
            return False
        return True

    async def reinitialize(self) -> None:
        """Forget which rung was chosen; the next run probes again."""
        await self.aclose()
        self._chosen = self._warm = self._sessions = self._home = None
        self._closed = False

    async def aclose(self) -> None:
        """End warm sandboxes and sessions, and remove the executor's folder. Idempotent."""
        self._closed = True
        home = self._home
        if home is asyncio.get_running_loop():
            await self._close_kept()
        elif home is not None and home.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close_kept(), home))
        # A loop that has ended cannot be waited in: removing the folder ends what it kept.
        if self.supervisor.process is not None:
            await asyncio.to_thread(self.supervisor.close)
        if self._run_directory.is_made:
            await asyncio.to_thread(self._run_directory.close)

    async def _close_kept(self) -> None:
        if self._warm is not None:
            await self._warm.close()
        if self._sessions is not None:
            await self._sessions.close()

    async def _rung(self) -> Rung:
        """Return the strongest rung that works and is strong enough, probing at the first call."""
        async with self._choosing:
            if self._chosen is None:
                self._chosen = await self._choose()
            if isinstance(self._chosen, BubblewrapRung):
                self._settle(self._chosen)
            return self._chosen

    def _settle(self, rung: BubblewrapRung) -> None:
        """Bind sandboxes and interpreters to the event loop of the first use, or to a new one if that has ended."""
        if self._home is not None and not self._home.is_closed():
            return
        self._home = asyncio.get_running_loop()
        self._sessions = Sessions(
            rung, self._run_directory, isolation=rung.isolation, lost=self._lost, counts=self.counts
        )
        if not self.stateful:
            self._warm = WarmSandboxes(rung, self._run_directory, isolation=rung.isolation, counts=self.counts)

    async def _choose(self) -> Rung:
        reports: list[RungReport] = []
        for rung in self._rungs:
            if rung.isolation < self.min_isolation:
                continue
            report = await rung.probe()
            if report.works and self.stateful and not isinstance(rung, BubblewrapRung):
                raise _no_state(reports, rung)
            if report.works:
                return rung
            reports.append(report)
        raise _unavailable(reports, self.min_isolation)


def _no_state(reports: Sequence[RungReport], rung: Rung) -> SandboxUnavailable:
    """Return the error for a machine whose sandbox cannot keep an interpreter."""
    stronger = " ".join(f"{report.name}: {report.missing}" for report in reports)
    return SandboxUnavailable(
        f"no isolation here keeps an interpreter: {rung.name} works, and runs every program anew. {stronger}".rstrip(),
        hint=next((report.install for report in reports if report.install), "apt-get install bubblewrap"),
        details={"rungs": [{"name": r.name, "missing": r.missing, "install": r.install} for r in reports]},
    )


def _unavailable(reports: Sequence[RungReport], min_isolation: Isolation) -> SandboxUnavailable:
    reasons = " ".join(f"{report.name}: {report.missing}" for report in reports)
    hint = next((report.install for report in reports if report.install), "")
    return SandboxUnavailable(
        f"No sandbox of at least {min_isolation.name} works on this machine. {reasons}".rstrip(),
        hint=hint or "Use a machine with user namespaces or Landlock, or a ContainerCodeExecutor.",
        details={"rungs": [{"name": r.name, "missing": r.missing, "install": r.install} for r in reports]},
    )
