"""Evals: what a person does with sets of other programs, with skills, and with tasks in Harbor's form."""

from __future__ import annotations

import json
from typing import Any

from tests.journeys.conftest import Person

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
