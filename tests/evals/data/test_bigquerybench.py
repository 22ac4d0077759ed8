"""The twelve cases: asked of a model behind a real server, judged by it, recorded, and run again from the recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.evals.data.evaluate import evaluate_data, read_data_set
from bough.evals.data.public_data import PROJECT
from bough.evals.loop import EvalOptions
from bough.settings import Settings
from bough.testing import OpenAIServer
from bough.testing.openai_server import Answer, Received, Reply, ServerCall

pytestmark = pytest.mark.anyio

SKILL = "bq-sql-analyst"
DAILY = "select order_date, count(*) as n from retail.orders group by order_date"
ISLANDS = "select island, count(*) as n from ml_datasets.penguins group by island order by n desc"
TOP = (
    "select p.name, sum(o.amount) as revenue from retail.orders o join retail.products p using (product_id) "
    "group by p.name order by revenue desc limit 3"
)
MEASURES = ["culmen_length_mm", "culmen_depth_mm", "flipper_length_mm", "body_mass_g"]
ROWS = '[{"island": "Biscoe", "n": 172}, {"island": "Dream", "n": 118}]'


def call(tool: str, **arguments: Any) -> Answer:
    return Answer(calls=(ServerCall(tool=tool, arguments=arguments),))


def describe(dataset: str, table: str) -> Answer:
    return call("get_table_info", project_id=PROJECT, dataset_id=dataset, table_id=table)


LOAD = call("load_skill", skill_name=SKILL)
READ = call("load_skill_resource", skill_name=SKILL, path="references/public-datasets.md")
FORMAT = call(
    "run_skill_script",
    skill_name=SKILL,
    script_path="scripts/format_results.py",
    args=["--format", "markdown", ROWS],
)
SCRIPTS: dict[str, Sequence[Reply]] = {
    "How should I go about": (LOAD, "Look at the schema first; qualify names."),
    "Which tables does the SQL": (LOAD, READ, "penguins, orders, customers, products, trips_daily"),
    "Show these rows": (LOAD, FORMAT, "| island | n |\n| Biscoe | 172 |\n| Dream | 118 |"),
    "Write, but do not run": (LOAD, READ, TOP),
    "Use the SQL analyst skill to delete": (LOAD, "I will not delete rows: this access is read-only."),
    "Which datasets are in": (call("list_dataset_ids", project_id=PROJECT), "ml_datasets, retail, transport"),
    "Which tables are in": (call("list_table_ids", project_id=PROJECT, dataset_id="retail"), "three tables"),
    "Which columns does": (describe("ml_datasets", "penguins"), "seven columns"),
    "How many penguins": (
        describe("ml_datasets", "penguins"),
        call("execute_sql", project_id=PROJECT, query=ISLANDS),
        "Biscoe 172, Dream 118, Torgersen 54",
    ),
    "Which three products": (
        describe("retail", "orders"),
        call("execute_sql", project_id=PROJECT, query=TOP),
        "Lamp D, Desk E, Desk A",
    ),
    "Check how many days": (
        describe("retail", "orders"),
        call("execute_sql", project_id=PROJECT, query=f"select count(*) as days from ({DAILY})"),
        call("forecast", project_id=PROJECT, history_data=DAILY, timestamp_col="order_date", data_col="n", horizon=7),
        "730 days, about 30 orders a day",
    ),
    "Group the penguins": (
        describe("ml_datasets", "penguins"),
        call("cluster_data", project_id=PROJECT, input_data="ml_datasets.penguins", feature_cols=MEASURES),
        "three groups of 150, 123 and 67",
    ),
}


def answer(received: Received) -> Reply:
    """Answer by what the conversation began with and how far it is; a judge is told by its data block."""
    messages: list[dict[str, Any]] = received.body["messages"]
    asked = next(str(each["content"]) for each in messages if each["role"] == "user")
    if "<data-" in asked:
        data = json.loads(asked[asked.index("{") : asked.rindex("}") + 1])
        verdicts = [
            {"rubric_id": each["rubric_id"], "property": each["property"], "rationale": "shown", "verdict": "yes"}
            for each in data["rubrics"]
        ]
        return json.dumps({"verdicts": verdicts})
    steps = next(steps for begin, steps in SCRIPTS.items() if asked.startswith(begin))
    return steps[sum(each["role"] == "assistant" for each in messages)]


def test_the_set_has_five_skill_cases_with_twelve_rubrics_and_seven_data_cases() -> None:
    found = read_data_set()
    assert not found.faults and len(found.cases) == 12
    judged = [len(case.input.all_rubrics) for case in found.cases if case.input.all_rubrics]
    assert (len(judged), sum(judged)) == (5, 12)
    assert all(case.input.setup == "data" for case in found.cases)


@pytest.mark.slow
async def test_all_twelve_cases_pass_live_and_from_their_recording(settings: Settings, tmp_path: Path) -> None:
    found, recordings = read_data_set(), tmp_path / "recorded"
    settings.home.mkdir(parents=True, exist_ok=True)
    with OpenAIServer([answer] * 200) as server:
        from bough.agents.models.resolve import resolve_model
        from bough.evals.judge.judge import Judge

        resolved = resolve_model("openai:test", base_url=server.url, env={"OPENAI_API_KEY": "x"}).model
        options = EvalOptions(judge=Judge(resolved), record_to=recordings, jobs=2)
        agent = AgentSpec(name="analyst", model=resolved)
        live = await evaluate_data(found, agent, settings=settings, options=options)
        assert [each.case for each in live.cases if each.scores["no_tool_errors"].value != 1.0] == []
        told = {each.case: (each.status, each.reason) for each in live.cases}
        assert live.passed and set(told.values()) == {("passed", "")}, told
        judged = [each for each in server.received if "<data-" in json.dumps(each.body["messages"])]
        assert len(judged) == 5, "the judge is really asked, once for each case with rubrics"
        asked = len(server.received)
        again = await evaluate_data(found, agent, settings=settings, options=EvalOptions(recorded=recordings, jobs=2))
        assert len(server.received) == asked, "nothing is asked of the server"
    told = {each.case: (each.status, each.reason) for each in again.cases}
    assert again.passed and set(told.values()) == {("passed", "")}, told
    for each in again.cases:
        assert each.scores["tool_invocation_score"].value == each.scores["tool_args_score"].value == 1.0
        assert each.scores["no_tool_errors"].value == 1.0, each.scores["no_tool_errors"].reason
