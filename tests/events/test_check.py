"""Checking a store while it is used."""

from __future__ import annotations

from typing import Any

import pytest

from bough.events.model import UserMessage

pytestmark = pytest.mark.anyio


async def test_events_that_are_written_during_a_check_are_no_finding(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await place.open(), await place.open()
    cid = (await store.create()).id
    census = store.census

    async def write_after_census() -> Any:
        counted = await census()
        monkeypatch.undo()
        await other.append(cid, [UserMessage.text("written during the check")])
        return counted

    monkeypatch.setattr(store, "census", write_after_census)
    report = await store.check()
    assert (report.findings, report.events) == ((), 0)
    await other.aclose()
    await store.aclose()
