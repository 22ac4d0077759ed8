"""Work that is finished under cancellation: asyncio's and anyio's, once and again and again."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from bough.cancellation import finish

pytestmark = pytest.mark.anyio


class Work:
    """Work that ends when it is let; it counts its cancellations, and cleans up before it gives way to one."""

    def __init__(self) -> None:
        self.begun, self.release, self.cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.cancellations = 0
        self.done = False

    async def run(self, error: Exception | None = None) -> str:
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            await self.cleaned.wait()
            if error is not None:
                raise error from None
            raise
        if error is not None:
            raise error
        self.done = True
        return "done"


async def cancel_three_times(task: asyncio.Task[str]) -> None:
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()


async def test_what_was_begun_is_finished_and_the_cancellation_raised() -> None:
    work = Work()
    task = asyncio.create_task(finish(work.run()))
    await work.begun.wait()
    await cancel_three_times(task)
    work.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (work.done, work.cancellations) == (True, 0)


async def test_the_error_of_the_work_is_raised() -> None:
    work = Work()
    work.release.set()
    with pytest.raises(LookupError):
        await finish(work.run(LookupError("x")))


async def test_an_error_during_a_cancellation_is_its_cause() -> None:
    work = Work()
    task = asyncio.create_task(finish(work.run(LookupError("x"))))
    await work.begun.wait()
    await cancel_three_times(task)
    work.release.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("error", [None, LookupError("x")])
async def test_a_cancellation_that_is_passed_on_reaches_the_work_once(error: Exception | None) -> None:
    work = Work()
    task = asyncio.create_task(finish(work.run(error), cancel=True))
    await work.begun.wait()
    await cancel_three_times(task)
    work.cleaned.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert (work.done, work.cancellations, caught.value.__cause__) == (False, 1, error)


async def test_work_that_is_cancelled_by_others_raises_its_cancellation() -> None:
    work = Work()
    work.cleaned.set()
    inner = asyncio.create_task(work.run())
    task = asyncio.create_task(finish(inner))
    await work.begun.wait()
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 0


async def test_a_cancelled_scope_of_anyio_waits_for_the_work() -> None:
    work = Work()

    async def release_later() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        work.release.set()

    releasing = asyncio.create_task(release_later())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await finish(work.run())
    await releasing
    assert (work.done, work.cancellations, scope.cancelled_caught) == (True, 0, True)
