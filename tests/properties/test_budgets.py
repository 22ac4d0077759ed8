"""Whatever conversations of two processes do to one budget, kills included, it is exceeded by one request at most.

The requests are those of `bough.guard.budget`, as a run makes them; a process that is killed settles nothing. What the
provider was asked for is counted beside: every amount that was sent, answered or not.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from bough.errors import BoughError
from bough.events import SqliteEventStore
from bough.events.model import Usage
from bough.guard import Budget
from bough.guard.budget import (
    BUDGETS,
    Amount,
    Hold,
    charge_hold,
    list_holds,
    read_account,
    release,
    reserve,
    settle,
    to_nanos,
)
from bough.types import new_id

PICK = st.integers(0, 10**6)
CONVERSATIONS = tuple(new_id() for _ in range(4))


@dataclass
class Sent:
    """A request in flight: what was held for it, and which process sent it."""

    hold: Hold
    amount: Amount
    process: int


@dataclass
class Provider:
    """What was asked for: tokens and billionths of a dollar of every request that was sent."""

    tokens: int = 0
    nanos: int = 0
    requests: int = 0
    largest: Amount = field(default_factory=lambda: Amount(0, 0))

    def bill(self, tokens: int, nanos: int) -> None:
        self.tokens, self.nanos, self.requests = self.tokens + tokens, self.nanos + nanos, self.requests + 1


class BudgetMachine(RuleBasedStateMachine):
    """Two processes and four conversations that spend from one budget of all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "log.db"
        self.stores = [self.runner.run(SqliteEventStore.open(file)) for _ in range(2)]
        self.budget = Budget(usd=0.00002, tokens=2_000, requests=12, id="june")
        self.runner.run(self.budget.create(self.stores[0]))
        self.generation = 0
        self.sent: dict[UUID, Sent] = {}
        self.lost: dict[UUID, Hold] = {}
        self.provider = Provider()

    def change(self, process: int, change: Any) -> Any:
        return self.runner.run(self.stores[process].transaction(BUDGETS, change))

    @rule(who=PICK, process=st.integers(0, 1), tokens=st.integers(1, 900), nanos=st.integers(0, 9_000))
    def ask(self, who: int, process: int, tokens: int, nanos: int) -> None:
        """A run asks for a request, as the present or as the next holder of the lease."""
        conversation = CONVERSATIONS[who % len(CONVERSATIONS)]
        if conversation in self.sent:
            return
        self.generation += 1
        hold, amount = Hold(conversation, self.generation), Amount(tokens, nanos)
        if self.change(process, lambda tables: reserve(tables, [self.budget], hold, amount)):
            self.sent[conversation] = Sent(hold, amount, process)
            self.lost.pop(conversation, None)

    @precondition(lambda self: self.sent)
    @rule(who=PICK, part=st.integers(0, 100))
    def answer(self, who: int, part: int) -> None:
        """The response is recorded: it used a part of what was held, or the provider does not tell."""
        sent = self._take(who)
        tokens, nanos = sent.amount.tokens * part // 100, (sent.amount.nanos or 0) * part // 100
        usage = Usage(output_tokens=tokens, cost_usd=nanos / 1e9 if part % 7 else None)
        self.change(sent.process, lambda tables: settle(tables, sent.hold.conversation, usage, ends_request=True))
        self.provider.bill(tokens, to_nanos(nanos / 1e9))

    @precondition(lambda self: self.sent)
    @rule(who=PICK)
    def refuse(self, who: int) -> None:
        """The provider refuses the request, which costs nothing."""
        sent = self._take(who)
        self.change(sent.process, lambda tables: release(tables, sent.hold, Amount(0, 0), requests=0))

    @precondition(lambda self: self.sent)
    @rule(who=PICK)
    def interrupt(self, who: int) -> None:
        """A run is interrupted and charges what is known."""
        sent = self._take(who)
        known = Amount(sent.amount.tokens // 2, (sent.amount.nanos or 0) // 2)
        self.change(sent.process, lambda tables: release(tables, sent.hold, known, requests=1))
        self.provider.bill(known.tokens, known.nanos or 0)

    @precondition(lambda self: self.sent)
    @rule(process=st.integers(0, 1))
    def kill(self, process: int) -> None:
        """A process dies: its requests are answered by the provider and settled by nobody."""
        for conversation, sent in list(self.sent.items()):
            if sent.process == process:
                del self.sent[conversation]
                self.lost[conversation] = sent.hold
                self.provider.bill(sent.amount.tokens, sent.amount.nanos or 0)

    @rule(process=st.integers(0, 1))
    def collect(self, process: int) -> None:
        """A run that waits charges what dead runs hold."""
        holds = self.change(process, lambda tables: list_holds(tables, "june"))
        assert {hold.conversation for hold in holds} == self.sent.keys() | self.lost.keys()
        for hold in holds:
            if hold.conversation in self.lost:
                self.change(process, lambda tables, hold=hold: charge_hold(tables, "june", hold))
        self.lost.clear()

    @rule()
    def raise_it(self) -> None:
        """Somebody gives the same id other bounds, which changes nothing."""
        with suppress(BoughError):
            self.runner.run(Budget(requests=1000, id="june").create(self.stores[1]))

    def _take(self, who: int) -> Sent:
        conversation = sorted(self.sent)[who % len(self.sent)]
        return self.sent.pop(conversation)

    @invariant()
    def is_exceeded_by_one_request_at_most(self) -> None:
        account = self.change(0, lambda tables: read_account(tables, "june"))
        in_flight = [*self.sent.values()]
        assert account.in_flight == len(in_flight) + len(self.lost)
        tokens = self.provider.tokens + sum(sent.amount.tokens for sent in in_flight)
        nanos = self.provider.nanos + sum(sent.amount.nanos or 0 for sent in in_flight)
        assert tokens < 2_000 + 900
        assert nanos < 20_000 + 9_000
        assert self.provider.requests + len(in_flight) <= 12

    @invariant()
    def knows_what_was_spent(self) -> None:
        account = self.change(1, lambda tables: read_account(tables, "june"))
        held = self.change(1, lambda tables: list_holds(tables, "june"))
        if not held:
            assert account.spent["requests"] == self.provider.requests
            assert account.spent["tokens"] >= self.provider.tokens
            assert account.spent["usd"] >= self.provider.nanos

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.aclose())
        self.runner.close()
        self.folder.cleanup()


def test_no_order_of_requests_and_kills_overshoots() -> None:
    run_state_machine_as_test(BudgetMachine)
