"""Evals: what a person does with sets of other programs, with skills, and with tasks in Harbor's form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.journeys.conftest import Person
from tests.journeys.page import Page, run_commands

from bough.testing import Failure, OpenAIServer

_HOME_AUTOMATION = '''
import asyncio, json
from bough import AgentSpec
from bough.evals import evaluate, read_set
from bough.testing import ScriptedModel, tool_call


def set_device_info(location: str, device_id: str, status: str) -> str:
    """Set the status of a device."""
    return "done"


async def main() -> None:
    for device in ("device_9", "device_2"):
        call = tool_call("set_device_info", location="Bedroom", device_id=device, status="OFF")
        agent = AgentSpec(model=ScriptedModel([call, "off"]), tools=(set_device_info,), skills=())
        run = await evaluate(read_set("lights.test.json"), agent)
        print(json.dumps([run.passed, run.cases[0].scores["tool_args_score"].reason]))

asyncio.run(main())
'''


def part(text: str | None) -> dict[str, Any]:
    """A part as ADK's tools write it: every field, most of them null."""
    names = ("video_metadata", "thought", "inline_data", "code_execution_result", "executable_code", "file_data")
    return {**dict.fromkeys(names), "function_call": None, "function_response": None, "text": text}


def adk_set(*turns: dict[str, Any], id: str = "fixture/lights.test.json") -> str:
    case = {
        "eval_id": id,
        "conversation": list(turns),
        "session_input": {"app_name": "lights", "user_id": "test_user", "state": {}},
        "creation_timestamp": 1747337309.2,
    }
    return json.dumps({"eval_set_id": "s", "name": "s", "description": None, "eval_cases": [case]})


def adk_turn(user: str, answer: str | None, data: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "invocation_id": "b7982664",
        "user_content": {"parts": [part(user)], "role": "user"},
        "final_response": {"parts": [part(answer)], "role": "model"},
        "intermediate_data": data,
        "creation_timestamp": 1747337309.2,
    }


CALL = {"location": "Bedroom", "device_id": "device_2", "status": "OFF"}


def test_a_wrong_argument_of_any_name_fails(person: Person) -> None:
    """ADK's home automation: the set expects `device_2`, the agent switches `device_9` off."""
    uses = {"tool_uses": [{"id": None, "args": CALL, "name": "set_device_info"}], "intermediate_responses": []}
    person.write({"lights.test.json": adk_set(adk_turn("Turn off device_2 in the Bedroom.", "Off.", uses))})
    wrong, right = map(json.loads, person.python(_HOME_AUTOMATION).stdout.splitlines())
    assert wrong == [False, "not passed: set_device_info(device_id=device_2)"]
    assert right == [True, "all 3 expected arguments were passed"]


def test_every_form_that_adk_has_written_is_read(person: Person) -> None:
    """Sets of ADK: every field of a part null, answers without text, events instead of tool uses, the older lists."""
    old_turns = [
        {"query": "What can you do?", "expected_tool_use": [], "expected_intermediate_agent_responses": []},
        {
            "query": "Turn off device_2 in the Bedroom.",
            "expected_tool_use": [{"tool_name": "set_device_info", "tool_input": CALL, "mock_tool_output": "ok"}],
            "expected_intermediate_agent_responses": [{"author": "helper", "text": "I look."}],
            "reference": "Off.",
        },
    ]
    session = {"state": {"room": "Bedroom"}, "app_name": "lights", "user_id": "user"}
    call = {"function_call": {"id": None, "args": CALL, "name": "set_device_info"}}
    events = {"invocation_events": [{"author": "lights", "content": {"parts": [part(None) | call], "role": "model"}}]}
    uses = {"tool_uses": [{"id": None, "args": CALL, "name": "set_device_info"}], "tool_responses": []}
    responses = {**uses, "intermediate_responses": [["helper", [part("I look.")]]]}
    forms = {
        "uses.test.json": adk_set(adk_turn("Turn it off.", "Off.", uses)),
        "responses.test.json": adk_set(adk_turn("Turn it off.", "Off.", responses)),
        "no-answer.test.json": adk_set(adk_turn("Turn it off.", None, uses)),
        "answered-by-a-call.test.json": adk_set(
            adk_turn("Turn it off.", None, uses) | {"final_response": {"parts": [part(None) | call], "role": "model"}}
        ),
        "events.evalset.json": adk_set(adk_turn("Turn it off.", "Off.", events)),
        "old.test.json": json.dumps(old_turns),
        "old.evalset.json": json.dumps([{"name": "lights_off", "data": old_turns, "initial_session": session}]),
        "old-no-session.evalset.json": json.dumps([{"name": "off", "data": old_turns[1:], "initial_session": {}}]),
    }
    person.write(forms)
    program = (
        "import sys, json\nfrom bough.evals import read_set\n"
        "for name in sys.argv[1:]:\n"
        "    found = read_set(name)\n"
        "    uses = [use.args for case in found.cases for use in case.input.tool_uses]\n"
        "    print(json.dumps([name, found.has_errors, [case.id for case in found.cases], uses]))\n"
    )
    read = [json.loads(line) for line in person.python(program, *forms).stdout.splitlines()]
    assert [(name, errors, len(cases), uses) for name, errors, cases, uses in read] == [
        (name, False, 1, [CALL]) for name in forms
    ]
    assert [cases for name, _, cases, _ in read if name.startswith("old")] == [["old"], ["lights_off"], ["off"]]
    plan = person.bough("eval", "run", "old.evalset.json", "--dry-run", "--json").json()["plan"]
    assert [(case["case"], case["turns"]) for case in plan] == [("lights_off", 2)]


@pytest.mark.slow
def test_the_page_about_evaluating_a_skill_works_as_written(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    page = Page("docs/how-to/evaluate-a-skill.md")
    person.write(page.files)
    answer = json.dumps({"verdicts": [{"rubric_id": "r1", "rationale": "it does", "verdict": "yes"}]})
    judge = openai_server(answer, answer)
    done = run_commands(person, *(block for block in page.commands if "$JUDGE" not in block))
    person.environment |= {"JUDGE": "openai:test", "OPENAI_API_KEY": "k", "BOUGH_BASE_URL": judge.url}
    measured = run_commands(person, *(block for block in page.commands if "$JUDGE" in block))
    assert "0 with errors" in done.stdout and "difference" in done.stdout
    assert "three@with_skill#1" in done.stdout and "conv show" in done.stdout
    assert "0.000 kappa" in measured.stdout, "the judge says yes to both labels"
    folder = person.folder / "line-count-workspace" / "iteration-1"
    summary = json.loads((folder / "benchmark.json").read_text())["run_summary"]
    assert (summary["with_skill"]["pass_rate"]["mean"], summary["without_skill"]["pass_rate"]["mean"]) == (1.0, 0.0)
    assert "has 3 lines" in (folder / "eval-three" / "with_skill" / "outputs" / "answer.md").read_text()
    for name in re.findall(r"^\| `([\w/.-]+)` \|", page.text, re.MULTILINE):
        assert (folder / name).exists(), name


def test_a_skill_that_is_right_passes_in_every_report(person: Person) -> None:
    page = Page("docs/how-to/evaluate-a-skill.md")
    evals = json.loads(page.files["line-count/evals/evals.json"])
    evals["evals"][0]["assertions"].append("The answer is polite.")
    person.write(page.files | {"line-count/evals/evals.json": json.dumps(evals)})
    run = person.bough("eval", "skill", "line-count", "--model", "offline", "--judge", "none", "--json").json()
    assert run["passed"] and run["not_judged"] == 1
    assert "not judged: 1" in person.bough("eval", "show", "-").stdout
    assert run["benchmark"]["run_summary"]["with_skill"]["pass_rate"]["mean"] == 1.0, "statements are left out"
    grading = json.loads(Path(run["folder"], "eval-three", "with_skill", "grading.json").read_text())
    assert grading["summary"] == {"passed": 2, "failed": 0, "total": 2, "pass_rate": 1.0}

    report = json.loads(person.bough("eval", "report", "-", "--format", "json").stdout)
    assert (report["passed"], report["summary"]["pass_rate"], report["summary"]["failed"]) == (True, 1.0, 0)
    assert report["sides"]["delta"]["pass_rate"] == 1.0
    suites = ElementTree.fromstring(person.bough("eval", "report", "-", "--format", "junit").stdout)
    assert [suite.get("name") for suite in suites] == ["line-count", "line-count-triggers"]
    assert [suite.get("failures") for suite in suites] == ["0", "0"]
    markdown = person.bough("eval", "report", "-", "--format", "md").stdout
    assert "| without_skill | 0.000 |" in markdown and "## Not passed" not in markdown

    runs = {entry["kind"]: entry for entry in person.bough("eval", "list", "--json").json()["runs"]}
    assert {kind: entry["pass_rate"] for kind, entry in runs.items()} == {"triggers": 1.0, "skill": 1.0}
    of_skill = runs["skill"]["run"]
    compared = person.bough("eval", "compare", of_skill, of_skill, "--json").json()
    assert compared["figures"]["pass"]["a"] == 1.0, "the side without the skill is no part of it"
    shown = person.bough("eval", "show", of_skill, "three@without_skill#1").stdout
    assert "TaskChanged" not in shown and "TaskNoted" not in shown


def test_a_later_try_replaces_an_error(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    refused = Failure(status=400, message="no", headers={"x-should-retry": "false"})
    model = openai_server("one", refused, "two")
    person.environment |= {"OPENAI_API_KEY": "k", "BOUGH_MODEL": "openai:test", "BOUGH_BASE_URL": model.url}
    person.write({"set.yaml": "cases:\n- {name: a, inputs: hi}\n- {name: b, inputs: ho}\n"})
    person.bough("eval", "run", "set.yaml", "--jobs", "1", code=1)
    again = person.bough("eval", "run", "set.yaml", "--jobs", "1", "--resume", "-", "--retry-errors", "--json").json()
    assert again["summary"]["pass_rate"] == 1.0 and again["summary"]["errors"] == 0
    assert [(each["case"], each["attempt"], each["status"]) for each in again["cases"]] == [
        ("a", 1, "passed"),
        ("b", 2, "passed"),
    ]


def test_a_few_cases_that_all_pass_leave_the_difference_uncertain(person: Person) -> None:
    """Six of six is no proof of 100 %: the interval of a comparison has a width, as that of a run has."""
    person.write({"set.yaml": "cases:\n" + "".join(f"- {{name: case-{n}, inputs: hi}}\n" for n in range(6))})
    runs = [person.bough("eval", "run", "set.yaml", "--model", "offline", "--json").json()["run"] for _ in range(2)]
    figures = person.bough("eval", "compare", *runs, "--json").json()["figures"]["pass"]
    assert figures["difference"] == 0 and figures["low"] < -0.3 and figures["high"] > 0.3


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
def test_the_page_about_harbor_tasks_works_as_written(person: Person) -> None:
    page = Page("docs/how-to/run-harbor-tasks.md")
    person.write(page.files)
    done = run_commands(person, *page.commands)
    assert re.findall(r"solved (\d) of 1", done.stdout) == ["1", "0"], "the oracle is paid, who does nothing is not"
    listed = person.bough("eval", "list", "--json").json()["runs"]
    assert [run["kind"] for run in listed] == ["harbor", "harbor"]


@pytest.mark.needs("bubblewrap")
def test_a_reward_of_0_shows_the_end_of_the_verifiers_log(person: Person) -> None:
    files = Page("docs/how-to/run-harbor-tasks.md").files
    test = "echo checking with $KEY\necho 'expected HELLO, there is no file' >&2\necho 0 > /logs/verifier/reward.txt\n"
    toml = files["tasks/shout/task.toml"] + '[verifier.env]\nKEY = "${TOKEN}"\n'
    person.write(files | {"tasks/shout/tests/test.sh": test, "tasks/shout/task.toml": toml})
    person.environment["TOKEN"] = "very-secret-value"
    done = person.bough("eval", "harbor", "tasks", "--sandbox", "--agent", "nop", "--secret", "TOKEN", code=1)
    assert "checking with" in done.stdout and "very-secret-value" not in done.output
    (log,) = re.findall(r"^log shout  (\S+)$", done.stdout, re.MULTILINE)
    assert "checking" in Path(log).read_text()
    assert "expected HELLO, there is no file" in done.stdout
    assert "expected HELLO, there is no file" in person.bough("eval", "show", "-", "shout").stdout
    left_out = person.bough("eval", "harbor", "tasks", "--sandbox", "--agent", "nop", "--skip-tests", code=2)
    assert "it has no skills" in left_out.stderr


_STATE = """
import asyncio
from bough.errors import NotSupported
from bough.execution import CodeExecutionInput, UnsafeLocalCodeExecutor

async def main():
    async with UnsafeLocalCodeExecutor() as executor:
        try:
            await executor.execute(CodeExecutionInput(code="x = 1", execution_id="a", stateful=True))
        except NotSupported as error:
            print("refused:", error.hint)
        print((await executor.execute(CodeExecutionInput(code="print(2)", execution_id="a"))).text)

asyncio.run(main())
"""


def test_an_executor_that_keeps_no_interpreter_refuses_to_keep_state(person: Person) -> None:
    refused, answer = person.python(_STATE).stdout.splitlines()[:2]
    assert refused.startswith("refused: leave `stateful` out") and answer == "2"
