"""What the next request of a conversation costs, as far as its price is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bough.conversation.log.state import State
from bough.events.model import Usage
from bough.server.conversations.model import estimate_next_request
from bough.settings import Price

PRICES = {"here:large": Price(input=10, output=100), "small": Price(input=1, output=10)}
USED = Usage(requests=4, input_tokens=3000, output_tokens=400)


@pytest.mark.parametrize(
    ("model", "usd"),
    [("here:large", 1100 * 10e-6 + 100 * 100e-6), ("there:small", 1100 * 1e-6 + 100 * 10e-6), ("no-such-model", None),
     ("", None)],
)  # fmt: skip
def test_the_next_request_sends_the_context_and_the_last_answer(model: str, usd: float | None) -> None:
    state = State(agent={"model": model}, request_tokens=1000, own=USED)
    estimate = estimate_next_request(state, PRICES)
    assert estimate == (None if usd is None else pytest.approx(usd))
    assert estimate_next_request(replace(state, request_tokens=0), PRICES) is None
