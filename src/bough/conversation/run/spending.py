"""Spending from budgets that conversations share. Before a request is sent, the amount that it may cost is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from uuid import UUID

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestContext

from bough.agents.usage import DEFAULT_OUTPUT_TOKENS, estimate_cost, estimate_input_tokens
from bough.cancellation import acquire, finish
from bough.conversation.agent import make_unpriced_error
from bough.conversation.log.journal import Journal
from bough.conversation.log.ledger import read_usage
from bough.conversation.rules import Rules
from bough.conversation.run.ask import summarize
from bough.errors import BoughError, LimitExceeded, NotFound
from bough.events.lease import is_gone
from bough.events.model import Condensed, LimitReached, ModelResponded, Usage
from bough.events.record import StoredEvent
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.events.usage import USAGE_KINDS
from bough.guard import Budget
from bough.guard.budget import (
    BUDGETS,
    Account,
    Amount,
    Hold,
    charge_hold,
    join,
    list_holds,
    read_account,
    release,
    reserve,
    settle,
    to_nanos,
)
from bough.settings import Price
from bough.types import new_id

_FIRST_WAIT_SECONDS = 0.05
_QUESTION_SECONDS = 900
"""How long a question may take. An older hold counts as the hold of a dead process."""
_LONGEST_WAIT_SECONDS = 1.0
_CHARACTERS_PER_TOKEN = 3


class BudgetUsedUp(LimitExceeded):
    """A request was not sent: a budget is used up, or a pause was requested while the request waited.

    Attributes:
        reached: The event that records the limit; None if it was a pause.
    """

    reached: LimitReached | None = None


def follow_budgets(store: EventStore) -> None:
    """Charge the usage of every event to the budgets of its conversation, in its transaction. Idempotent."""
    store.on_append(BUDGETS, USAGE_KINDS, charge_event)


def charge_event(tables: Tables, cid: UUID, stored: StoredEvent) -> None:
    """Charge the usage of an event; one statement, none if it has no usage."""
    event = stored.event
    _, usage = read_usage(event)
    if usage is None:
        return
    is_response = isinstance(event, ModelResponded | Condensed)
    if is_response or any((usage.requests, usage.input_tokens, usage.output_tokens, usage.cost_usd)):
        settle(tables, cid, usage, ends_request=is_response)


def make_used_up_error(reached: LimitReached) -> BudgetUsedUp:
    """Return the error for a budget that is used up."""
    error = BudgetUsedUp(
        f"{reached.limit} is used up: {reached.value:g} of {reached.bound:g}",
        hint="raise its bounds, then run again",
        details={"limit": reached.limit, "value": reached.value, "bound": reached.bound},
    )
    error.reached = reached
    return error


def _find_reached(budgets: tuple[Budget, ...], accounts: list[Account]) -> LimitReached | None:
    for budget, account in zip(budgets, accounts, strict=True):
        if (reached := account.find_reached()) is not None:
            name, value, bound = reached
            return LimitReached(limit=f"budget.{budget.id}.{name}", value=value, bound=bound)
    return None


class RunBudgets:
    """Holds what each request of a run may cost, in the budgets of its rules.

    Args:
        rules: Returns the rules in force.
        generation: The generation of the run's lease.
        prices: `Settings.prices`.
    """

    def __init__(
        self, journal: Journal, rules: Callable[[], Rules], generation: int, prices: Mapping[str, Price]
    ) -> None:
        self._journal = journal
        self._rules = rules
        self._hold = Hold(journal.cid, generation)
        self.prices = prices
        self._received_characters = 0
        self._task = asyncio.current_task()
        if rules().budgets:
            follow_budgets(journal.store)

    def count_piece(self, text: str) -> None:
        """Count a piece of the response that has arrived."""
        self._received_characters += len(text)

    @asynccontextmanager
    async def hold_request(self, request: ModelRequestContext, *, streams: bool) -> AsyncGenerator[None]:
        """Hold what a request may cost while the block sends it. One statement for each budget; none without budgets.

        When the response is recorded, its usage is charged and the hold ends. If there is no response, an estimate is
        charged: nothing if the provider refused the request; the input and the pieces that arrived if it was
        interrupted; else the whole amount that was held.

        Args:
            streams: Whether the response is streamed, so that its pieces are counted.

        Raises:
            BudgetUsedUp: A budget is used up; the limit is in the log. Or a pause was requested while the request
                waited.
            InvalidInput: A budget has a bound of cost, and the price of the model is not known.
            NotFound: The store has no budget with the recorded id.
        """
        budgets = self._rules().budgets
        if not budgets:
            yield
            return
        parameters, settings = request.model_request_parameters, request.model_settings
        input_tokens = estimate_input_tokens(request.messages, parameters)
        output_tokens = int((settings or {}).get("max_tokens") or DEFAULT_OUTPUT_TOKENS)
        amount = self._price(request.model, input_tokens, output_tokens)
        try:
            await self._reserve(budgets, request.model, amount)
        except BudgetUsedUp as error:
            if error.reached is not None:
                self._journal.stage(error.reached)
            raise
        self._received_characters = 0
        try:
            yield
        except BaseException as error:
            has_begun = self._received_characters > 0
            received_tokens = min(-(-self._received_characters // _CHARACTERS_PER_TOKEN), output_tokens)
            if not has_begun and not (self._is_interrupted and isinstance(error, asyncio.CancelledError)):
                await self._release(Amount(0, 0), requests=0)
            elif streams:
                await self._release(self._price(request.model, input_tokens, received_tokens), requests=1)
            else:
                await self._release(amount, requests=1)
            raise

    @property
    def _is_interrupted(self) -> bool:
        """Whether the run is being cancelled. PydanticAI also cancels the task of a request whose stream has failed."""
        return self._task is not None and self._task.cancelling() > 0

    @asynccontextmanager
    async def hold_question(self, model: Model, messages: Sequence[ModelMessage]) -> AsyncGenerator[None]:
        """Hold what a question may cost while the block asks it and records its usage.

        The question has a separate hold, because a run of the conversation may hold a request at the same time. If the
        process dies, the hold ends after `_QUESTION_SECONDS`.

        Raises: see `hold_request`. A limit is not recorded in the log, because it stops no run.
        """
        if not (budgets := self._rules().budgets):
            yield
            return
        follow_budgets(self._journal.store)
        cid = self._journal.cid
        await self._journal.store.transaction(BUDGETS, lambda tables: join(tables, budgets, cid))
        self._hold = Hold(new_id(), -round(time.time() + _QUESTION_SECONDS))
        amount = self._price(model, estimate_input_tokens(messages), DEFAULT_OUTPUT_TOKENS)
        await self._reserve(budgets, model, amount)
        try:
            yield
        except BaseException as error:
            is_refused = isinstance(error, Exception)
            await self._release(Amount(0, 0) if is_refused else amount, requests=int(not is_refused))
            raise
        await self._release(Amount(0, 0), requests=0)  # the recorded usage was charged to the conversation

    async def summarize(self, model: Model, messages: Sequence[ModelMessage], *, keep: str = "") -> tuple[str, Usage]:
        """Return a summary for a condenser, and its usage, which the event of the condensation charges.

        Args:
            keep: What the summary must keep.

        Raises:
            ModelError: The model failed.
            BudgetUsedUp: See `hold_request`.
        """
        if not (budgets := self._rules().budgets):
            return await summarize(model, messages, prices=self.prices, keep=keep)
        amount = self._price(model, estimate_input_tokens(messages), DEFAULT_OUTPUT_TOKENS)
        await self._reserve(budgets, model, amount)
        try:
            return await summarize(model, messages, prices=self.prices, keep=keep)
        except BaseException as error:
            is_refused = isinstance(error, Exception)
            await self._release(Amount(0, 0) if is_refused else amount, requests=int(not is_refused))
            raise

    async def _reserve(self, budgets: tuple[Budget, ...], model: Model, amount: Amount) -> None:
        """Hold an amount; wait while requests in flight hold the rest. Raises: see `hold_request`."""
        follow_budgets(self._journal.store)
        response_seq = self._journal.state.response_seq
        if response_seq is not None and self._journal.durable <= response_seq:
            await self._journal.settle()  # the last response must be charged before the next request is held
        wait_seconds = _FIRST_WAIT_SECONDS
        while not await self._try_reserve(budgets, amount):
            reached = await self._find_obstacle(budgets, model, amount)
            if reached is not None:
                raise make_used_up_error(reached)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(wait_seconds * 2, _LONGEST_WAIT_SECONDS)
            await self._journal.catch_up()
            if self._journal.state.pausing:
                raise BudgetUsedUp("a pause was requested while the request waited for a budget")

    async def _try_reserve(self, budgets: tuple[Budget, ...], amount: Amount) -> bool:
        change = partial(reserve, budgets=budgets, hold=self._hold, amount=amount)
        # If the run is cancelled meanwhile, nothing stays held for a request that was never sent.
        return await acquire(
            self._journal.store.transaction(BUDGETS, change), lambda _: self._release(Amount(0, 0), requests=0)
        )

    async def _find_obstacle(self, budgets: tuple[Budget, ...], model: Model, amount: Amount) -> LimitReached | None:
        """Return the limit of a budget that is used up; None if the request can be sent once others have ended.

        Amounts held by dead runs count as spent, and are charged here.
        """
        store = self._journal.store

        def query(tables: Tables) -> tuple[list[Account], dict[str, list[Hold]]]:
            accounts = [read_account(tables, budget.id) for budget in budgets]
            return accounts, {budget.id: list_holds(tables, budget.id) for budget in budgets}

        accounts, holds = await store.transaction(BUDGETS, query, read_only=True)
        if amount.nanos is None and any("usd" in account.bounds for account in accounts):
            raise make_unpriced_error(model.model_name)
        all_holds = [(id, hold) for id, budget_holds in holds.items() for hold in budget_holds]
        lost_holds = [(id, hold) for id, hold in all_holds if await self._is_lost(hold)]
        if lost_holds:
            await store.transaction(BUDGETS, lambda tables: [charge_hold(tables, id, hold) for id, hold in lost_holds])
            accounts, _ = await store.transaction(BUDGETS, query, read_only=True)
        return _find_reached(budgets, accounts)

    async def _is_lost(self, hold: Hold) -> bool:
        """Whether the run that holds an amount is dead, so that no response will end the hold."""
        if hold.conversation == self._hold.conversation:
            return True  # this run has no request in flight now
        if hold.is_question:
            return time.time() > -hold.generation
        store = self._journal.store
        try:
            record, owner = await store.get(hold.conversation), await store.lease_owner(hold.conversation)
        except NotFound:
            return True
        return owner is None or is_gone(owner) or record.generation != hold.generation

    async def _release(self, used: Amount, *, requests: int) -> None:
        """End the hold of the request and charge `used`, also if the run is cancelled meanwhile."""
        change = partial(release, hold=self._hold, used=used, requests=requests)
        with suppress(BoughError):  # the hold is charged later as that of a dead run; the caller raises the first error
            await finish(self._journal.store.transaction(BUDGETS, change))

    def _price(self, model: Model, input_tokens: int, output_tokens: int) -> Amount:
        usd = estimate_cost(model, self.prices, input_tokens=input_tokens, output_tokens=output_tokens)
        return Amount(input_tokens + output_tokens, None if usd is None else to_nanos(usd))
