"""A budget that many conversations share, over a file and over Postgres: never overshot by more than one request."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Conversation
from bough.conversation.log.condenser import SummarizingCondenser
from bough.errors import BoughError, Conflict, InvalidInput, LimitExceeded, NotFound
from bough.events import PostgresEventStore, SqliteEventStore, open_store
from bough.events.model import Usage, UsageAdded
from bough.events.store import EventStore
from bough.guard import Budget, Limits
from bough.guard.budget_report import list_budgets, read_budget, set_budget
from bough.orchestrator import OrchestratorAgent
from bough.settings import Price, Settings
from bough.tasks import TaskBroker, TaskStoreSqlite
from bough.testing import ScriptedModel, tool_call
from bough.testing.postgres import drop_schema
from bough.types import new_id

pytestmark = pytest.mark.anyio

Start = Callable[..., Any]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A store that several processes can use, of each kind."""
    if request.param == "sqlite":
        opened: EventStore = await SqliteEventStore.open(tmp_path / "log.db")
        yield opened
        await opened.aclose()
        return
    url, schema = request.getfixturevalue("postgres"), f"budget_{new_id().hex}"
    opened = await PostgresEventStore.open(url, schema=schema)
    yield opened
    await opened.aclose()
    drop_schema(url, schema)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path, prices={"scripted": Price(input=1, output=10)})


def answer(text: str = "done", *, tokens: int = 100, call: Any = None) -> ModelResponse:
    """A response that used so many tokens of output, and 1,000 of input: 0.001 dollars and 0.00001 for each token."""
    parts = [TextPart(text)] if call is None else [call]
    usage = RequestUsage(input_tokens=1000, output_tokens=tokens)
    return ModelResponse(parts=parts, model_name="scripted", usage=usage)


def agent(*steps: Any, max_tokens: int = 100, **fields: Any) -> AgentSpec:
    return AgentSpec(
        name="worker", model=ScriptedModel(steps), skills=(), settings={"max_tokens": max_tokens}, **fields
    )


def note() -> str:
    """Note something."""
    return "noted"


async def test_two_conversations_spend_one_budget_and_go_on_when_it_is_raised(start: Start, store: EventStore) -> None:
    budget = Budget(usd=0.005, requests=10, id="june")
    first = await start(agent(answer(tokens=100), answer(tokens=100)), budget=budget)
    second = await start(agent(*[answer(tokens=100, call=tool_call("note")) for _ in range(3)], answer(), tools=[note]))
    other = await AsyncConversation.open(
        second.id, store=store, agent=second.agent, settings=second.settings, budget=Budget(id="june")
    )
    for _ in range(2):
        await first.send_message("go")
        assert (await first.run()).status == "finished"
    await other.send_message("go")
    result = await other.run()
    assert (result.status, result.limit) == ("paused", "budget.june.usd")
    spent = await budget.usage(store)
    assert (round(spent.usd, 9), spent.tokens, spent.requests, spent.in_flight) == (0.006, 3300, 3, 0)
    assert (await budget.remaining(store)).usd == 0
    assert (await budget.remaining(store)).requests == 7
    assert (await budget.change(store, usd=1)).bounds == {"usd": 1, "requests": 10}
    assert (await other.run()).output == "done"
    assert (await budget.usage(store)).requests == 6


async def test_what_the_log_names_binds_a_fork_and_a_later_process(start: Start, store: EventStore) -> None:
    spec = agent(*[answer() for _ in range(9)])
    conversation = await start(spec, budget=Budget(requests=2, id="june"))
    fork = await conversation.fork()
    opened = await AsyncConversation.open(fork.id, store=store, agent=spec, settings=conversation.settings)
    for each in (conversation, fork, opened):
        await each.send_message("go")
        result = await each.run()
    assert (result.limit, spec.model.requests) == ("budget.june.requests", 2)
    assert fork.state.policies["budgets"] == ["june"]


async def test_a_budget_given_at_the_opening_is_kept(start: Start, store: EventStore) -> None:
    spec = agent(*[answer() for _ in range(9)])
    conversation = await start(spec, budget=Budget(requests=5, id="june"))
    opened = await AsyncConversation.open(
        conversation.id, store=store, agent=spec, settings=conversation.settings, budget=Budget(requests=1, id="may")
    )
    await opened.send_message("go")
    await opened.run()
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.limit, spec.model.requests) == ("budget.may.requests", 1)
    assert (await Budget(id="june").usage(store)).requests == (await Budget(id="may").usage(store)).requests == 1


async def test_sub_agents_and_tasks_spend_it(settings: Settings, tmp_path: Path) -> None:
    helper = AgentSpec(name="helper", model=ScriptedModel([answer("found")] * 3), skills=())
    boss = AgentSpec(
        name="boss",
        model=ScriptedModel(
            [answer(call=tool_call("delegate", agent_name="helper", prompt="find it")), answer("done")]
        ),
        skills=(),
        sub_agents=[helper],
    )
    budget = Budget(requests=5, id="june")
    async with TaskBroker(TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}"), settings=settings) as broker:
        async with OrchestratorAgent(boss, broker=broker, budget=budget, workspace=tmp_path) as orchestrator:
            await orchestrator.run("go")
        assert (await budget.usage(broker.store.log)).requests == 3
        broker.register_agents([helper])
        task = await broker.wait(await broker.submit("again", agent_name="helper", budget=budget))
        assert task.state.value == "completed"
        spent = await budget.usage(broker.store.log)
        assert (spent.requests, spent.in_flight) == (4, 0)
        with pytest.raises(InvalidInput, match="invalid budget"):
            await broker.submit("again", agent_name="helper", budget="june")


async def test_the_last_of_it_is_spent_by_one_request_at_a_time(start: Start, store: EventStore) -> None:
    """A request holds more than 2,500 tokens and costs 1,100: three of eight are sent, never two where one is left."""
    in_flight: list[int] = [0, 0]

    async def think(asked: Any) -> ModelResponse:
        in_flight[0] += 1
        in_flight[1] = max(in_flight)
        for _ in range(20):
            await asyncio.sleep(0)
        in_flight[0] -= 1
        return answer(tokens=100)

    budget = Budget(tokens=3000, id="june")
    conversations = [await start(agent(think, max_tokens=2500), budget=budget) for _ in range(8)]
    for conversation in conversations:
        await conversation.send_message("go")
    results = await asyncio.gather(*(conversation.run() for conversation in conversations))
    assert sorted(result.status for result in results) == ["finished"] * 3 + ["paused"] * 5
    spent = await budget.usage(store)
    assert (spent.tokens, spent.requests, spent.in_flight, in_flight[1]) == (3300, 3, 0, 1)


async def test_requests_of_many_are_in_flight_together_while_all_may_be_paid(start: Start, store: EventStore) -> None:
    waiting, together = asyncio.Event(), [0]

    async def think(asked: Any) -> ModelResponse:
        together[0] += 1
        if together[0] == 6:
            waiting.set()
        await waiting.wait()
        return answer()

    budget = Budget(requests=6, usd=1, id="june")
    conversations = [await start(agent(think), budget=budget) for _ in range(6)]
    for conversation in conversations:
        await conversation.send_message("go")
    results = await asyncio.gather(*(conversation.run() for conversation in conversations))
    assert {result.status for result in results} == {"finished"}
    assert (await budget.usage(store)).requests == 6


async def test_a_refused_request_costs_nothing_and_an_interrupted_one_what_is_known(
    start: Start, store: EventStore
) -> None:
    budget, started = Budget(requests=9, tokens=100_000, id="june"), asyncio.Event()

    async def hang(asked: Any) -> str:
        started.set()
        await asyncio.sleep(3600)
        return "never"

    conversation = await start(agent(RuntimeError("no"), hang, answer()), budget=budget)
    await conversation.send_message("go")
    with pytest.raises(BoughError):
        await conversation.run()
    refused = await budget.usage(store)
    assert (refused.requests, refused.tokens, refused.in_flight) == (0, 0, 0)
    run = asyncio.create_task(conversation.run())
    await started.wait()
    await conversation.interrupt()
    assert (await run).status == "paused"
    interrupted = await budget.usage(store)
    assert (interrupted.requests, interrupted.in_flight) == (1, 0)
    assert 0 < interrupted.tokens < 200, "the input, and nothing of the response"
    await conversation.run()
    assert (await budget.usage(store)).tokens == interrupted.tokens + 1100


async def test_a_response_without_usage_costs_what_was_held(start: Start, store: EventStore) -> None:
    budget = Budget(usd=1, id="june")
    conversation = await start(agent("done", max_tokens=5000), budget=budget)
    await conversation.send_message("go")
    await conversation.run()
    spent = await budget.usage(store)
    assert (spent.requests, 5000 < spent.tokens < 5200, 0.05 < spent.usd < 0.06) == (1, True, True)


async def test_questions_summaries_and_tools_spend_it(start: Start, store: EventStore) -> None:
    budget = Budget(requests=5, id="june")
    condenser = SummarizingCondenser(model=ScriptedModel([answer("short")]), max_events=5, keep_first=1)
    conversation = await start(agent(*[answer()] * 6), budget=budget, condenser=condenser)
    for _ in range(3):
        await conversation.send_message("go")
        await conversation.run()
    await conversation.ask("why?")
    assert (await budget.usage(store)).requests == 4
    assert await conversation.condense()
    spent = await budget.usage(store)
    assert (spent.requests, spent.in_flight) == (5, 0)
    with pytest.raises(LimitExceeded, match="used up"):
        await conversation.ask("why?")


async def test_a_pause_ends_the_wait_for_a_budget(start: Start, store: EventStore) -> None:
    release, started = asyncio.Event(), asyncio.Event()

    async def think(asked: Any) -> ModelResponse:
        started.set()
        await release.wait()
        return answer()

    budget = Budget(requests=1, id="june")
    first, second = await start(agent(think), budget=budget), await start(agent(answer()), budget=budget)
    for conversation in (first, second):
        await conversation.send_message("go")
    run = asyncio.create_task(first.run())
    await started.wait()
    waiting = asyncio.create_task(second.run())
    while second.status != "running":
        await budget.usage(store)
    await second.pause()
    assert ((await waiting).status, second.agent.model.requests) == ("paused", 0)
    release.set()
    assert (await run).status == "finished"


KILLED = """
import asyncio, os, sys
from pathlib import Path
from bough.conversation import AsyncConversation
from bough.guard import Budget
from bough.agents.spec import AgentSpec
from bough.events import PostgresEventStore, SqliteEventStore
from bough.settings import Settings
from bough.testing import ScriptedModel

async def hang(asked):
    os.write(1, b"sent\\n")
    await asyncio.sleep(3600)

async def main(kind, place, schema, home):
    is_file = kind == "sqlite"
    store = await (SqliteEventStore.open(Path(place)) if is_file else PostgresEventStore.open(place, schema=schema))
    spec = AgentSpec(name="worker", model=ScriptedModel([hang]), skills=(), settings={"max_tokens": 100})
    settings = Settings.load(home=home, env={})
    conversation = await AsyncConversation.create(
        spec, store=store, settings=settings, workspace=home, budget=Budget(id="june")
    )
    await conversation.send_message("go")
    await conversation.run()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_process_held_is_spent_when_another_needs_it(
    start: Start, store: EventStore, tmp_path: Path
) -> None:
    (tmp_path / "killed").mkdir()
    budget = Budget(requests=2, id="june")
    await budget.create(store)
    if isinstance(store, PostgresEventStore):
        place = ("postgres", store.url, store.schema)
    else:
        place = ("sqlite", store.url.removeprefix("sqlite:///"), "-")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, *place, str(tmp_path / "killed"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"sent\n"
    assert (await budget.usage(store)).in_flight == 1
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    conversation = await start(agent(answer(call=tool_call("note")), answer(), tools=[note]), budget=budget)
    await conversation.send_message("go")
    result = await conversation.run()
    assert result.limit == "budget.june.requests"
    spent = await budget.usage(store)
    assert (spent.requests, spent.in_flight) == (2, 0), "one of the killed process, one of this"


async def test_own_prices_are_used_for_costs_and_limits(start: Start, store: EventStore, tmp_path: Path) -> None:
    conversation = await start(agent(answer()), limits=Limits(cost_usd=1))
    await conversation.send_message("go")
    await conversation.run()
    assert conversation.usage.cost_usd == pytest.approx(0.002)
    unpriced = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    with pytest.raises(InvalidInput, match="prices of scripted are unknown") as error:
        await AsyncConversation.create(
            agent(answer()), store=store, settings=unpriced, workspace=tmp_path, budget=Budget(usd=1)
        )
    assert "bough.yaml" in (error.value.hint or "")
    opened = await AsyncConversation.create(agent(answer()), store=store, settings=unpriced, workspace=tmp_path)
    await Budget(usd=1, id="june").create(store)
    reference = await AsyncConversation.open(
        opened.id, store=store, agent=opened.agent, settings=unpriced, budget=Budget(id="june")
    )
    await reference.send_message("go")
    with pytest.raises(InvalidInput, match="prices of scripted are unknown"):
        await reference.run()
    assert opened.agent.model.requests == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"usd": 0},
        {"usd": -1},
        {"usd": float("nan")},
        {"usd": float("inf")},
        {"usd": True},
        {"usd": "5"},
        {"tokens": 0},
        {"tokens": 1.5},
        {"requests": -3},
        {"requests": 1 << 70},
        {"usd": 1, "id": "a b"},
        {"usd": 1, "id": "x" * 101},
        {"usd": 1, "id": 5},
    ],
    ids=str,
)
async def test_a_budget_that_bounds_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as error:
        Budget(**fields)
    assert error.value.hint


async def test_an_id_stands_for_one_budget_of_one_store(start: Start, store: EventStore, tmp_path: Path) -> None:
    await start(agent(answer()), budget=Budget(usd=5, id="june"))
    for bounds in ({"usd": 6}, {"usd": 5, "tokens": 9}, {"tokens": 5}):
        with pytest.raises(Conflict, match="exists with other bounds: usd=5"):
            await start(agent(answer()), budget=Budget(**bounds, id="june"))
    await start(agent(answer()), budget=Budget(usd=5.0, id="june"))
    before = await store.count()
    for missing in (Budget(id="july"), (Budget(usd=1, id="may"), Budget(id="july"))):
        with pytest.raises(NotFound, match="no budget 'july'"):
            await start(agent(answer()), budget=missing)
    with pytest.raises(NotFound):
        await Budget(id="may").usage(store)
    assert await store.count() == before, "nothing is written where a budget is refused"
    with pytest.raises(NotFound):
        await Budget(id="july").usage(store)
    with pytest.raises(NotFound):
        await Budget(id="july").change(store, usd=1)
    with pytest.raises(InvalidInput, match="needs a bound"):
        await Budget(id="june").change(store)
    with pytest.raises(InvalidInput, match="same id"):
        await start(agent(answer()), budget=[Budget(usd=5, id="june"), Budget(id="june")])
    with pytest.raises(InvalidInput):
        await start(agent(answer()), budget=5)


async def test_an_imported_log_spends_from_no_budget_of_this_store(
    start: Start, store: EventStore, settings: Settings, tmp_path: Path
) -> None:
    """Whoever makes a bundle could otherwise name the budget of somebody else."""
    spec = agent(*[answer() for _ in range(5)])
    conversation = await start(spec, budget=Budget(requests=5, id="june"))
    await conversation.send_message("go")
    await conversation.run()
    bundle = io.BytesIO()
    await store.export(conversation.id, bundle)
    elsewhere = await open_store("memory:")
    await Budget(requests=5, id="june").create(elsewhere)
    bundle.seek(0)
    imported = (await elsewhere.import_(bundle)).id
    opened = await AsyncConversation.open(imported, store=elsewhere, agent=spec, settings=settings)
    await opened.adopt()
    forks: Sequence[Any] = [opened, await opened.fork(), await opened.fork(at=3)]
    for each in forks:
        await each.send_message("go")
        await each.run()
    assert (await Budget(id="june").usage(elsewhere)).requests == 0
    await elsewhere.aclose()


async def test_a_request_costs_two_statements(start: Start, store: EventStore) -> None:
    if not isinstance(store, SqliteEventStore):
        return
    statements: list[str] = []
    calls = [answer(call=tool_call("note")) for _ in range(5)]
    budget = Budget(requests=50, id="june")
    conversations = [await start(agent(*calls, answer(), tools=[note]), budget=budget) for _ in range(4)]
    for conversation in conversations:
        await conversation.send_message("go")
    await store._write(lambda log: log.db.set_trace_callback(statements.append))  # pyright: ignore
    await asyncio.gather(*(conversation.run() for conversation in conversations))
    await store._write(lambda log: log.db.set_trace_callback(None))  # pyright: ignore
    # SQLite repeats a statement after each of its triggers, which begin with `--`.
    written = [sql for sql, _ in groupby(sql for sql in statements if not sql.startswith("--")) if "budget" in sql]
    assert len(written) == 2 * 4 * 6, "one to hold, one to settle"


async def test_the_forms_without_await(tmp_path: Path, settings: Settings) -> None:
    def use() -> tuple[Any, ...]:
        url, budget = f"sqlite:///{tmp_path / 'sync.db'}", Budget(requests=2, id="june")
        with Conversation(agent(answer()), store=url, settings=settings, workspace=tmp_path, budget=budget) as talk:
            talk.send_message("go")
            talk.run()
        changed = budget.change_sync(url, requests=5)
        return budget.usage_sync(url).requests, budget.remaining_sync(url).requests, changed.requests

    assert await asyncio.to_thread(use) == (1, 4, 5)


async def test_questions_at_the_same_time_share_it(start: Start, store: EventStore) -> None:
    gate = asyncio.Event()

    async def think(_: Any) -> ModelResponse:
        await gate.wait()
        return answer()

    budget = Budget(requests=2)
    conversation = await start(agent(*[think] * 5), budget=budget)
    questions = [asyncio.create_task(conversation.ask("why?")) for _ in range(5)]
    while (await budget.usage(store)).in_flight < 2:
        await asyncio.sleep(0)
    gate.set()
    outcomes = await asyncio.gather(*questions, return_exceptions=True)
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 2
    assert sum(isinstance(outcome, LimitExceeded) for outcome in outcomes) == 3
    usage = await budget.usage(store)
    assert (usage.requests, usage.in_flight) == (2, 0)
    assert conversation.state.limit is None, "no run was stopped"


@pytest.mark.parametrize("ending", ["answered", "refused", "interrupted", "used up"])
async def test_a_question_leaves_a_row_only_if_it_spent_something(start: Start, store: EventStore, ending: str) -> None:
    started = asyncio.Event()

    async def fail(_: Any) -> ModelResponse:
        started.set()
        if ending == "interrupted":
            await asyncio.Event().wait()
        raise ConnectionError("refused")

    budget = Budget(requests=1 if ending == "used up" else 5, id="june")
    conversation = await start(agent(answer() if ending in ("answered", "used up") else fail), budget=budget)
    question = asyncio.create_task(conversation.ask("why?"))
    if ending == "interrupted":
        await started.wait()
        question.cancel()
    await asyncio.gather(question, return_exceptions=True)
    if ending == "used up":
        with pytest.raises(LimitExceeded):
            await conversation.ask("why?")
    report = await read_budget(store, "june")
    spent = {member.conversation: member.spent.requests for member in report.members}
    expected = {
        "answered": {conversation.id: 1},
        "used up": {conversation.id: 1},
        "refused": {conversation.id: 0},
        "interrupted": {conversation.id: 0, None: 1},
    }
    assert spent == expected[ending]
    assert report.spent.requests == sum(spent.values())
    assert report.reserved.requests == 0


async def test_a_report_has_bounds_what_is_spent_held_and_left(start: Start, store: EventStore) -> None:
    release, started = asyncio.Event(), asyncio.Event()

    async def think(_: Any) -> ModelResponse:
        started.set()
        await release.wait()
        return answer()

    conversation = await start(agent(answer(), think), budget=Budget(usd=0.01, requests=9, id="june"))
    await conversation.send_message("go")
    await conversation.run()
    fork = await conversation.fork()
    await fork.send_message("go")
    run = asyncio.create_task(fork.run())
    await started.wait()
    report = await read_budget(store, "june")
    assert report.as_json()["spent"] == {"usd": 0.002, "tokens": 1100, "requests": 1}
    assert report.as_json()["remaining"] == {"usd": 0.008, "tokens": None, "requests": 8}
    assert (report.reserved.requests, report.reserved.tokens > 100, report.reserved.usd > 0.001) == (1, True, True)
    assert [member.conversation for member in report.members] == [conversation.id, fork.id]
    release.set()
    await run
    await set_budget(store, Budget(tokens=1, id="july"))
    await set_budget(store, Budget(requests=2, id="june"))
    await Budget(usd=1, id="acme/june").create(store)
    listed = await list_budgets(store)
    assert [each.id for each in listed] == ["acme/june", "july", "june"]
    assert (listed[2].bounds, listed[2].used_up) == ({"usd": 0.01, "requests": 2}, ["requests"])
    assert [each.id for each in await list_budgets(store, prefix="")] == ["july", "june"]
    assert [each.id for each in await list_budgets(store, prefix="acme/")] == ["acme/june"]
    assert [each.id for each in await list_budgets(store, after="acme/june", limit=1)] == ["july"]
    with pytest.raises(NotFound):
        await read_budget(store, "may")
    with pytest.raises(NotFound):
        await set_budget(store, Budget(id="may"))


async def test_a_question_needs_a_price_as_a_run_does(start: Start, settings: Settings) -> None:
    unpriced = ScriptedModel(["never"], model_name="unpriced")
    budget = Budget(usd=5, id="june")
    conversation = await start(agent(answer()), budget=budget)
    opened = await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=agent(), settings=settings, budget=Budget(id="june")
    )
    opened_model = opened.agent.model_copy(update={"model": unpriced})
    other = await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=opened_model, settings=settings
    )
    with pytest.raises(InvalidInput, match="prices of unpriced"):
        await other.ask("why?")
    assert unpriced.requests == 0


async def test_an_id_that_is_used_again_spends_nothing(start: Start, store: EventStore) -> None:
    budget, id = Budget(requests=5), new_id()
    conversation = await start(agent(answer()), budget=budget, id=id)
    await conversation.send_message("go")
    await conversation.run()
    await conversation.aclose()
    await store.delete(id)
    again = await start(agent(answer()), id=id)
    await again.send_message("go")
    await again.run()
    assert (await budget.usage(store)).requests == 1, "what was spent stays spent, and the new one spends nothing"


async def test_condensing_without_a_budget_left_is_no_failure(start: Start) -> None:
    condenser = SummarizingCondenser(max_events=8)
    spec = agent(*[answer() for _ in range(6)])
    conversation = await start(spec, budget=Budget(requests=4, id="june"), condenser=condenser)
    for _ in range(4):
        await conversation.send_message("go")
        await conversation.run()
    with pytest.raises(LimitExceeded):
        await conversation.condense()
    kinds = [stored.kind async for stored in conversation.events]
    assert "ErrorRaised" not in kinds
    await conversation.send_message("go")
    assert (await conversation.run()).limit == "budget.june.requests"
    kinds = [stored.kind async for stored in conversation.events]
    assert (kinds.count("LimitReached"), "ErrorRaised" in kinds) == (1, False)


async def test_a_cost_alone_is_charged_in_whatever_process(start: Start, store: EventStore) -> None:
    budget = Budget(usd=1, id="june")
    conversation = await start(agent(answer()), budget=budget)
    opened = await AsyncConversation.open(
        conversation.id, store=store, agent=conversation.agent, settings=conversation.settings
    )
    await conversation.aclose()
    await opened.send_message("go")
    await opened.run()
    before = (await budget.usage(store)).usd
    await opened.append(UsageAdded(purpose="analyzer", model="flat-fee", usage=Usage(requests=0, cost_usd=0.02)))
    assert round((await budget.usage(store)).usd - before, 9) == 0.02


async def test_a_second_budget_that_refuses_frees_the_first(start: Start, store: EventStore) -> None:
    wide, narrow = Budget(requests=9, id="a"), Budget(requests=1, id="b")
    conversation = await start(agent(answer(), answer()), budget=[wide, narrow])
    for limit in (None, "budget.b.requests"):
        await conversation.send_message("go")
        assert (await conversation.run()).limit == limit
    usage = await wide.usage(store)
    assert (usage.requests, usage.in_flight) == (1, 0)


async def test_a_fork_gets_a_budget_of_its_own(start: Start, store: EventStore, settings: Settings) -> None:
    """It spends from the source's budget too; the source does not spend from the fork's."""
    spec = agent(*[answer() for _ in range(9)])
    conversation = await start(spec, budget=Budget(requests=5, id="june"))
    fork = await conversation.fork(overrides={"budget": Budget(requests=1, id="fork")})
    opened = await AsyncConversation.open(fork.id, store=store, agent=spec, settings=settings)
    for each, limit in ((conversation, None), (fork, None), (opened, "budget.fork.requests")):
        await each.send_message("go")
        assert (await each.run()).limit == limit
    assert [(await Budget(id=id).usage(store)).requests for id in ("june", "fork")] == [2, 1]
    with pytest.raises(NotFound):
        await conversation.fork(overrides={"budget": [Budget(id="unknown")]})


async def test_a_budget_for_a_fork_of_a_log_that_nobody_adopted_is_refused(
    start: Start, store: EventStore, settings: Settings
) -> None:
    """It would not be in force, because budgets that such a log names are not."""
    spec = agent(*[answer() for _ in range(5)])
    conversation = await start(spec)
    await conversation.send_message("go")
    bundle = io.BytesIO()
    await store.export(conversation.id, bundle)
    elsewhere = await open_store("memory:")
    bundle.seek(0)
    imported = (await elsewhere.import_(bundle)).id
    opened = await AsyncConversation.open(imported, store=elsewhere, agent=spec, settings=settings)
    overrides: Any = {"budget": Budget(requests=1, id="fork")}
    with pytest.raises(Conflict):
        await opened.fork(overrides=overrides)
    await opened.adopt()
    fork = await opened.fork(overrides=overrides)
    assert fork.state.policies["budgets"] == ["fork"]
    with pytest.raises(Conflict):
        await opened.fork(at=1, overrides=overrides)
    await elsewhere.aclose()
