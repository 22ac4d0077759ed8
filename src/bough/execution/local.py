"""The default executor: runs code in the strongest sandbox that works on this machine, or refuses.

Source: ADK (`LocalSandboxCodeExecutor`).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import cached_property, partial

from bough.cancellation import finish
from bough.errors import InvalidInput, SandboxUnavailable, Unavailable
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutorMixin, Isolation
from bough.execution.packages import Packages
from bough.execution.process.child import ChildProcess, ConnectedChild
from bough.execution.process.process import run_process
from bough.execution.process.result import make_timeout_result
from bough.execution.process.run_directory import RunDirectory
from bough.execution.request import Plan, make_plan, refuse_persistent_interpreter
from bough.execution.sandbox.bubblewrap import BubblewrapRung
from bough.execution.sandbox.landlock import LandlockRung, make_serving_command
from bough.execution.sandbox.preloaded import PreloadedSupervisor
from bough.execution.sandbox.rung import Rung, RungReport, list_interpreters
from bough.execution.warm.stateful import Sessions
from bough.execution.warm.warm import WarmSandboxes
from bough.execution.warm.zygote import Key


class LocalSandboxCodeExecutor(CodeExecutorMixin):
    """Runs code in a sandbox on this machine: in bubblewrap if it works, otherwise under Landlock.

    Before the first run, it tests each sandbox by running a program in it. The isolation is in every result. Nothing
    is ever run with less than `min_isolation`.

    Args:
        min_isolation: The weakest acceptable isolation.
        default_timeout_seconds: The timeout of requests without one.
        stateful: Whether Python code of one `execution_id` runs in one persistent interpreter; needs bubblewrap.
        packages: A virtual environment, or a folder with installed packages, that programs can import and cannot
            change; a relative path is resolved against the current working folder. They are at `/packages`, the last
            entry of `PYTHONPATH`. Python code and scripts run in the version that the packages need; `python3` in a
            shell script may be another version. `.pth` files are not read, so packages installed with `pip install -e`
            cannot be imported.

    Raises:
        InvalidInput: `packages` does not exist or contains no packages, or they are for another platform, or for a
            version of Python that no sandbox here has.

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
        if self.packages is not None:
            _ = self._rungs  # raises if no sandbox here has the version that the packages need
        self._chosen: Rung | None = None
        self._warm: WarmSandboxes | None = None
        self._sessions: Sessions | None = None
        self._lost_reasons: OrderedDict[Key, str] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._choosing = asyncio.Lock()
        self._run_directory = RunDirectory()
        self.supervisor = PreloadedSupervisor(make_serving_command)
        self._closed = False
        self.counts: Counter[str] = Counter()

    @cached_property
    def _rungs(self) -> Sequence[Rung]:
        """The sandboxes, strongest first. Found at the first run, because most opened conversations run no code."""
        interpreters = list_interpreters() if self.packages is None else self.packages.find_interpreters()
        return BubblewrapRung(interpreters=interpreters), LandlockRung(interpreters=interpreters)

    @property
    def isolation(self) -> Isolation:
        """The isolation of the chosen sandbox; before the first run, `min_isolation`."""
        return self.min_isolation if self._chosen is None else self._chosen.isolation

    async def probe(self) -> tuple[RungReport, ...]:
        """Test every rung, strongest first, by running a program in it. The chosen rung does not change."""
        return tuple(await asyncio.gather(*(rung.probe() for rung in self._rungs)))

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in the chosen sandbox. Safe for concurrent use; cancelling kills the whole tree.

        Raises:
            InvalidInput: The request is invalid; nothing was run.
            NotSupported: The request is for a persistent interpreter, which needs bubblewrap; nothing was run.
            SandboxUnavailable: No rung of at least `min_isolation` works here; nothing was run.
            ExecutorError: The program could not be started.
        """
        if self._closed:
            raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
        plan = await self._make_plan(request)
        return await finish(self._run(plan), cancel=True)

    async def _make_plan(self, request: CodeExecutionInput) -> Plan:
        """Check a request, add the packages of the environment, and return its plan."""
        if self.packages is not None:
            make_plan(request, default_timeout_seconds=self.default_timeout_seconds)  # checks the paths first
            if not self.packages.is_current:
                self.packages = await asyncio.to_thread(self._reload_packages, self.packages)
            request = self.packages.add_to(request)
        return make_plan(request, default_timeout_seconds=self.default_timeout_seconds)

    def _reload_packages(self, earlier: Packages) -> Packages:
        """Read the packages of the environment again and return them. Blocks.

        Raises:
            InvalidInput: The packages now need another version of Python than the chosen sandbox has.
        """
        packages = earlier.find_again()
        if packages.version != earlier.version:
            interpreters = packages.find_interpreters()
            versions = {interpreter.version for interpreter in self._rungs[0].interpreters}
            if self._chosen is None:
                for rung in self._rungs:
                    rung.interpreters = interpreters
            elif versions != {packages.version}:
                raise packages.make_version_error(earlier.version)
        return packages

    async def _run(self, plan: Plan) -> CodeExecutionResult:
        """Run `plan` in its persistent interpreter, in a warm sandbox if there is one, or in a new sandbox."""
        rung = await self._get_rung()
        if plan.timeout_seconds == 0:
            return make_timeout_result(plan, isolation=rung.isolation)
        if plan.domain_rules:
            return await self._run_with_network(plan, rung)
        execution_id = plan.request.execution_id
        is_own_loop = self._loop is asyncio.get_running_loop()
        if execution_id is not None and self._sessions is not None and self._is_stateful(plan):
            if not is_own_loop:
                raise Unavailable(
                    "the executor's interpreters belong to another event loop",
                    hint="use the executor in one event loop only, either with `await` or without, or create another",
                )
            return await self._sessions.run(plan)
        if self._sessions is None:
            refuse_persistent_interpreter(plan.request)
        if self._warm is None or execution_id is None or not is_own_loop:
            return await self._run_cold(plan, rung)
        result = await self._warm.run(plan)
        if result is None:
            result = await self._run_cold(plan, rung)
            self._warm.note_cold_run(plan)
        else:
            self.counts["warm"] += 1
        return result

    def _is_stateful(self, plan: Plan) -> bool:
        """Whether the plan is for a persistent interpreter."""
        requested = plan.request.stateful
        return self.stateful if requested is None else requested

    async def warm_up(self, request: CodeExecutionInput) -> bool:
        """Start a warm sandbox for runs like `request`, which needs an `execution_id`, and wait until it is ready.

        Returns whether there is a warm sandbox now; False on a rung without warm sandboxes.
        """
        plan = await self._make_plan(request)
        await self._get_rung()
        if self._warm is None or request.execution_id is None or self._loop is not asyncio.get_running_loop():
            return False
        self._warm.expect(plan)
        await self._warm.settle()
        return self._warm.has(plan)

    async def _run_with_network(self, plan: Plan, rung: Rung) -> CodeExecutionResult:
        """Run `plan` with access to its domains, in a new sandbox with a network namespace.

        Raises:
            SandboxUnavailable: The rung has no network namespace.
            InvalidInput: The plan is for a persistent interpreter, which has no network.
        """
        if not isinstance(rung, BubblewrapRung):
            raise SandboxUnavailable(
                "Network access needs bubblewrap.", hint="apt-get install bubblewrap, or request no network."
            )
        if self._is_stateful(plan) and plan.request.execution_id is not None:
            raise InvalidInput("A stateful run has no network.", hint="Run it without an execution_id.")
        return await self._run_cold(plan, rung)

    async def _run_cold(self, plan: Plan, rung: Rung) -> CodeExecutionResult:
        """Run `plan` in a new sandbox."""
        self.counts["cold"] += 1
        return await run_process(
            plan,
            run_directory=self._run_directory,
            make_launch=rung.launch,
            isolation=rung.isolation,
            identity=rung.identity(plan),
            make_child=self.supervisor.child if isinstance(rung, LandlockRung) else ChildProcess,
        )

    async def run_connected(self, request: CodeExecutionInput, *, stdin: int, stdout: int) -> CodeExecutionResult:
        """Run `request` with its input and output connected to descriptors of this process, which remain open.

        Raises:
            InvalidInput: The request is invalid; nothing was run.
            SandboxUnavailable: bubblewrap, the only rung that passes descriptors, does not work here.
        """
        plan = await self._make_plan(request)
        rung = await self._get_rung()
        if not isinstance(rung, BubblewrapRung):
            raise SandboxUnavailable(
                "A program with connected input and output needs bubblewrap.", hint="apt-get install bubblewrap"
            )
        return await run_process(
            plan,
            run_directory=self._run_directory,
            make_launch=rung.launch,
            isolation=rung.isolation,
            identity=rung.identity(plan),
            make_child=partial(ConnectedChild, stdin=stdin, stdout=stdout),
        )

    async def healthy(self) -> bool:
        """Whether a rung of at least `min_isolation` works."""
        if self._closed:
            return False
        try:
            await self._get_rung()
        except SandboxUnavailable:
            return False
        return True

    async def reinitialize(self) -> None:
        """Close the executor and forget the chosen rung; the next run probes again."""
        await self.aclose()
        self._chosen = self._warm = self._sessions = self._loop = None
        self._closed = False

    async def aclose(self) -> None:
        """End warm sandboxes and sessions, and remove the executor's folder. Idempotent."""
        self._closed = True
        sandbox_loop = self._loop
        if sandbox_loop is asyncio.get_running_loop():
            await self._close_sandboxes()
        elif sandbox_loop is not None and sandbox_loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close_sandboxes(), sandbox_loop))
        # Nothing can be awaited in a closed loop. Its sandboxes end when the folder is removed below.
        if self.supervisor.process is not None:
            await asyncio.to_thread(self.supervisor.close)
        if self._run_directory.is_created:
            await asyncio.to_thread(self._run_directory.close)

    async def _close_sandboxes(self) -> None:
        """Close warm sandboxes and persistent interpreters. Must run in the event loop to which they belong."""
        if self._warm is not None:
            await self._warm.close()
        if self._sessions is not None:
            await self._sessions.close()

    async def _get_rung(self) -> Rung:
        """Return the strongest rung that works and has at least `min_isolation`; the first call probes the rungs."""
        async with self._choosing:
            if self._chosen is None:
                self._chosen = await self._choose()
            if isinstance(self._chosen, BubblewrapRung):
                self._bind_to_loop(self._chosen)
            return self._chosen

    def _bind_to_loop(self, rung: BubblewrapRung) -> None:
        """Create the warm sandboxes and interpreters of the running event loop, unless an open loop has them."""
        if self._loop is not None and not self._loop.is_closed():
            return
        self._loop = asyncio.get_running_loop()
        self._sessions = Sessions(
            rung, self._run_directory, isolation=rung.isolation, lost_reasons=self._lost_reasons, counts=self.counts
        )
        if not self.stateful:
            self._warm = WarmSandboxes(rung, self._run_directory, isolation=rung.isolation, counts=self.counts)

    async def _choose(self) -> Rung:
        """Probe the rungs, strongest first, and return the first one that works.

        Raises:
            SandboxUnavailable: No rung of at least `min_isolation` works, or the working one has no interpreters.
        """
        reports: list[RungReport] = []
        for rung in self._rungs:
            if rung.isolation < self.min_isolation:
                continue
            report = await rung.probe()
            if report.works and self.stateful and not isinstance(rung, BubblewrapRung):
                raise _make_stateless_error(reports, rung)
            if report.works:
                return rung
            reports.append(report)
        raise _make_unavailable_error(reports, self.min_isolation)


def _make_stateless_error(reports: Sequence[RungReport], rung: Rung) -> SandboxUnavailable:
    """Return the error for a machine on which only a rung without persistent interpreters works."""
    reasons = " ".join(f"{report.name}: {report.missing}" for report in reports)
    return SandboxUnavailable(
        f"no sandbox on this machine has persistent interpreters: {rung.name} works, but starts a new interpreter "
        f"for each run. {reasons}".rstrip(),
        hint=next((report.install for report in reports if report.install), "apt-get install bubblewrap"),
        details={
            "rungs": [{"name": report.name, "missing": report.missing, "install": report.install} for report in reports]
        },
    )


def _make_unavailable_error(reports: Sequence[RungReport], min_isolation: Isolation) -> SandboxUnavailable:
    """Return the error for a machine on which no rung of at least `min_isolation` works."""
    reasons = " ".join(f"{report.name}: {report.missing}" for report in reports)
    hint = next((report.install for report in reports if report.install), "")
    return SandboxUnavailable(
        f"No sandbox of at least {min_isolation.name} works on this machine. {reasons}".rstrip(),
        hint=hint or "Use a machine with user namespaces or Landlock, or a ContainerCodeExecutor.",
        details={
            "rungs": [{"name": report.name, "missing": report.missing, "install": report.install} for report in reports]
        },
    )
