"""A recorded conversation as a regression test, in one line."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation.replay.replay import ReplayReport
    from bough.events.store import EventStore
    from bough.execution.base import CodeExecutor


async def assert_replays(
    recorded: EventStore | str | Path,
    agent: AgentSpec,
    *,
    id: UUID | str = "-",
    workspace: str | Path = ".",
    until: int | None = None,
    executor: CodeExecutor | None = None,
) -> ReplayReport:
    """Replay a recorded conversation with `agent`'s tools and without a model, and fail if anything differs.

    ```python
    async def test_the_report_still_comes_out():
        await assert_replays("tests/recorded/report.bough", agent=my_agent, workspace=tmp_path)
    ```

    Args:
        recorded: A bundle (`bough conv export`), a store, or the URL of a store.
        agent: The agent whose tools, skills and rules are tested; its model is not called.
        id: The conversation in a store. Ignored for a bundle, which contains only one.
        workspace: Folder for tools and scripts; the recorded folder is not used.
        until: Replay only the events before this seq; None replays all.

    Returns:
        The report of the replay.

    Raises:
        AssertionError: The replay differs; the message shows where.
        NotFound: The conversation or file does not exist.
    """
    from bough.conversation.replay.replay import rerun

    async with _open_recorded(recorded, id) as (store, cid):
        events = [stored async for stored in store.read(cid, 0, until)]
    report = await rerun(events, agent, workspace=Path(workspace), executor=executor)
    if not report.same:
        differences = "\n".join(difference.render() for difference in report.differences[:3])
        raise AssertionError(f"conversation {cid} replays differently: {report.error or ''}\n{differences}")
    return report


@contextlib.asynccontextmanager
async def _open_recorded(recorded: EventStore | str | Path, id: UUID | str) -> AsyncGenerator[tuple[EventStore, UUID]]:
    """Open a bundle or a store, and find the conversation in it."""
    from bough.events import open_store

    if not isinstance(recorded, str | Path):
        yield recorded, id if isinstance(id, UUID) else await recorded.resolve(id)  # noqa: ASYNC240 - a store's
        return
    is_url = isinstance(recorded, str) and ("://" in recorded or recorded == "memory:")
    store = await open_store(str(recorded) if is_url else "memory:")
    try:
        if is_url:
            yield store, id if isinstance(id, UUID) else await store.resolve(id)
            return
        # A bundle is imported into memory, so that the replay cannot change it.
        bundle = io.BytesIO(await asyncio.to_thread(_read_bundle, Path(recorded)))
        yield store, (await store.import_(bundle)).id
    finally:
        await store.aclose()


def _read_bundle(bundle: Path) -> bytes:
    from bough.errors import NotFound

    try:
        return bundle.read_bytes()
    except OSError as error:
        raise NotFound(f"no bundle {bundle}: {error.strerror}", hint="`bough conv export` writes a bundle") from error
