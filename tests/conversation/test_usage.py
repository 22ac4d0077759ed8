"""What is asked beside the log is paid for all the same: it counts as the conversation's, and for its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from bough.conversation.log.condenser import SummarizingCondenser
from bough.guard import Limits
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio


async def test_what_a_summary_used_counts_for_the_conversation_and_its_bounds(start: Any, scripted: Any) -> None:
    condenser = SummarizingCondenser(model=ScriptedModel(["all of it, in short"]), max_events=5, keep_first=1)
    conversation = await start(
        scripted(*map(str, range(9))), condenser=condenser, limits=Limits(per="conversation", requests=6)
    )
    for number in range(4):
        await conversation.send_message(f"question {number}")
        await conversation.run()
    assert (conversation.usage.requests, [each.kind async for each in conversation.events].count("Condensed")) == (5, 1)
    await conversation.send_message("one more")
    assert (await conversation.run()).status == "finished"
    await conversation.send_message("and one that is too much")
    assert (await conversation.run()).limit == "requests"


async def test_a_question_beside_it_counts_and_is_in_no_request(start: Any, scripted: Any) -> None:
    spec = scripted("one", "aside", "two")
    conversation = await start(spec)
    await conversation.send_message("go")
    await conversation.run()
    assert await conversation.ask("what do you think?") == "aside"
    assert conversation.usage.requests == 2
    await conversation.send_message("on")
    await conversation.run()
    assert "what do you think" not in str(spec.model.asked[2].messages)
    (added,) = [each.event async for each in conversation.events if each.kind == "UsageAdded"]
    assert (added.purpose, added.usage.requests) == ("ask", 1)
