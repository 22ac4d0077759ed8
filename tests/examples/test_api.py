"""The programs of `examples/api`: each runs as it is, against a server that speaks OpenAI's format, and prints this.

They run in this process: importing PydanticAI anew for each would take longer than all of them together.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest

from bough.testing import Answer, OpenAIServer, ServerCall
from bough.testing.openai_server import Failure, Received, Reply, Step

FOLDER = Path(__file__).parents[2] / "examples" / "api"
LINES = range(15, 41)
"""How long such a program is: what one reads in a README."""

ANYTHING = "…"
"""In what a program prints: text that is another one each time."""


def calls(*wanted: tuple[str, dict[str, Any]]) -> Answer:
    return Answer(calls=tuple(ServerCall(tool=tool, arguments=arguments) for tool, arguments in wanted))


def call(tool: str, /, **arguments: Any) -> Answer:
    return calls((tool, arguments))


def gives(value: Any = None, /, **fields: Any) -> Answer:
    """The answer of an agent with an output type; what is not an object is wrapped into one."""
    return call("final_result", **(fields or {"response": value}))


def said_in(received: Received) -> str:
    """What a request says, as text."""
    return json.dumps(received.body["messages"], ensure_ascii=False)


def by_question(answers: Mapping[str, Reply]) -> Callable[[Received], Reply]:
    """Answer by what was asked, for programs that ask several things at once."""
    return lambda received: next(reply for asked, reply in answers.items() if asked in said_in(received))


def search_until_told(received: Received) -> Reply:
    """Search page after page until the person says stop: when that comes is up to the program."""
    if "Stop: the second page" in said_in(received):
        return "The flat of the second page."
    return call("search", query="garden", page=len(received.body["messages"]))


class Program(NamedTuple):
    """What the model says, what the program prints, and what the last request has to have told the model."""

    steps: Sequence[Step]
    printed: str
    told: Sequence[str] = ()


RIVERS = by_question(
    {
        "Lisbon": "Tagus",
        "Bergen": "none",
        "Graz": "Mur",
        "Atlantis": Failure(status=400, message="no such city", kind="invalid_request_error"),
    }
)
TIDES = by_question({"tides on Earth": "They follow the Moon.", "tides on Titan": "They follow Saturn."})
CHRISTMAS = {"start": "2026-12-21", "end": "2026-12-28"}
DOWN = Failure(status=503, message="overloaded")

PROGRAMS: Mapping[str, Program] = {
    "approval": Program(
        [
            calls(
                ("send_money", {"to": "the plumber", "amount_eur": 900.0}),
                ("send_money", {"to": "Bob", "amount_eur": 5000.0}),
            ),
            "The plumber has 90 EUR, Bob has nothing.",
        ],
        """\
        send_money {'to': 'the plumber', 'amount_eur': 900.0}
        send_money {'to': 'Bob', 'amount_eur': 5000.0}
        The plumber has 90 EUR, Bob has nothing.
        sent: 90.00 EUR to the plumber
        """,
        ["90.00 EUR to the plumber", "we do not know Bob"],
    ),
    "ask_aside": Program(
        ["Rest your wrist.", "Scales and wrists", "Yes."],
        """\
        Rest your wrist.
        Scales and wrists {'worried': 'True'}
        2 questions beside it, 2 messages in it
        """,
    ),
    "audit_log": Program(
        [call("delete_account", name="Mallory"), "Done."],
        """\
        … in, … out, tool_call
          5 … delete_account {"name": "Mallory"} risk=None
        … in, … out, stop
        """,
    ),
    "best_of_five": Program(
        [*["Bread and breeze."] * 5, gives(3)],
        """\
        1. Bread and breeze.
        2. Bread and breeze.
        3. Bread and breeze.
        4. Bread and breeze.
        5. Bread and breeze.
        The judge took number 3: Bread and breeze.
        """,
    ),
    "client_tools": Program(
        [call("locate", precise=True), "Next to the tower."],
        """\
        external: locate {'precise': True}
        Next to the tower.
        """,
        ["48.85"],
    ),
    "condensers": Program(
        ["1492: Columbus.", "1517: Luther.", "1648: Westphalia.", "Columbus sailed, Luther wrote.", "1789: Bastille."],
        """\
        1492: Columbus.
        1517: Luther.
        1648: Westphalia.
        1789: Bastille.
        events … are now: [Summary of … earlier messages]
        Columbus sailed, Luther wrote.
        … events in the log, … messages for the model
        """,
        ["Columbus sailed, Luther wrote."],
    ),
    "dependencies": Program(
        [calls(("add_to_basket", {"item": "tea"}), ("add_to_basket", {"item": "cake"})), "Here you are."],
        """\
        Here you are.
        basket: tea, cake 7.75
        """,
        ["tea: 4.50 EUR", "cake: 3.25 EUR"],
    ),
    "fork_and_compare": Program(
        [
            "Of the tram.",
            call("book", hotel="Pensao", nights=2),
            "The Pensao has a room.",
            call("book", hotel="Ritz", nights=2),
            "The Ritz awaits you.",
        ],
        """\
        Of the tram.
        cheap: The Pensao has a room.
        grand: The Ritz awaits you.
        5 events in common
        cheap: {'hotel': 'Pensao', 'nights': 2}
        grand: {'hotel': 'Ritz', 'nights': 2}
        """,
        ["2 nights at Ritz"],
    ),
    "hello": Program(
        ["Paris.", "Two million."],
        """\
        > What is the capital of France?
        Paris.
        > And how many people live there?
        Two million.
        …: 2 requests, … tokens in, … out
        """,
        ["What is the capital of France?"],
    ),
    "hooks": Program(
        [calls(("read", {"name": "notes.txt"}), ("read", {"name": "salaries.csv"})), "Milk; salaries are private."],
        """\
        Milk; salaries are private.
        refused by hook: salaries are read by people only
        """,
        ["buy milk", "salaries are read by people only"],
    ),
    "images": Program(
        ["Red.", "12,000.", "A dot and a report."],
        """\
        Red.
        12,000.
        A dot and a report.
        """,
        ["data:image/png;base64,iVBOR", "data:application/pdf;base64,JVBERi"],
    ),
    "interrupt": Program(
        [call("print_poster", copies=1000), call("print_poster", copies=10), "Ten posters are there."],
        """\
        paused interrupted
        print_poster: ToolInterrupted
        Ten posters are there.
        """,
    ),
    "judge_and_revise": Program(
        ["Rain, rain.", gives(good=False, wish="No repetition."), "Rain writes on glass.", gives(good=True)],
        """\
        1. Rain, rain.
           No repetition.
        2. Rain writes on glass.
        """,
    ),
    "limits": Program(
        [*[call("look_further", page=page) for page in range(1, 5)], "It never ends."],
        """\
        paused steps 2
        paused steps 2
        finished It never ends.
        … tokens in all
        """,
    ),
    "many_at_once": Program(
        [RIVERS] * 4,
        """\
        Lisbon: Tagus
        Bergen: none
        Graz: Mur
        Atlantis: unknown (model_error)
        """,
    ),
    "mcp_tools": Program(
        [call("time_in", city="Lisbon"), "Half past twelve."], "Half past twelve.", ["12:30 in Lisbon"]
    ),
    "memory": Program(
        ["Noted.", call("recall", words="sister"), "To Lisbon, where Grace lives."],
        """\
        Noted.
        To Lisbon, where Grace lives.
        """,
        ["user: My sister Grace moved to Lisbon."],
    ),
    "message_history": Program(
        ["Ada."],
        """\
        Ada.
        request user-prompt
        response text
        request user-prompt
        response text
        """,
        ["My name is Ada."],
    ),
    "one_shot": Program(
        [call("read_file", path="README.md"), "A folder for tests."],
        """\
        A folder for tests.
        title: Summarize README.md in one sentence.
        kinds: ConversationStarted UserMessage StateChanged ModelResponded ToolCalled ToolReturned
        """,
        ["# Test"],
    ),
    "pause": Program(
        [call("water", plant="fern"), call("water", plant="palm"), "The cactus stays dry."],
        """\
        paused fern palm
        finished fern palm
        The cactus stays dry.
        """,
        ["palm has water", "leave the cactus alone"],
    ),
    "persistence": Program(
        ["Noted.", "Good morning, Bob.", "Oolong."],
        """\
        Noted.
        Good morning, Bob.
        Oolong.
        ada: I like oolong., … events, finished
        bob: Good morning., … events, finished
        """,
        ["I like oolong."],
    ),
    "pydantic_ai_agent": Program(
        [call("look_up", city="Norway"), call("look_up", city="Bergen"), "It rains in Bergen."],
        """\
        It rains in Bergen.
        told to the model: unknown city; known ones: Lisbon, Bergen
        """,
        ["You tell the weather."],
    ),
    "retry_and_fallback": Program(
        [DOWN, DOWN, "I am."],
        """\
        gpt-5: status 503, again in … s
        gpt-5: status 503, now openai:gpt-5-mini
        I am.
        """,
    ),
    "risky_calls": Program(
        [
            call("set_thermostat", celsius=20),
            "LOW: a usual temperature",
            "It is 20 degrees.",
            call("set_thermostat", celsius=60),
            "HIGH: too hot for people",
            "I leave it as it is.",
        ],
        """\
        It is 20 degrees.
        set_thermostat {'celsius': 60} waits: HIGH, too hot for people
        I leave it as it is.
        6 requests, those of the judge included
        """,
        ["that would be a sauna"],
    ),
    "routing": Program(
        [gives("easy"), "4", gives("hard"), "Nobody knows."],
        """\
        easy (openai:gpt-5-mini): 4
        hard (openai:gpt-5): Nobody knows.
        """,
    ),
    "secrets_in_commands": Program(
        [call("run_command", command='echo "the token is $API_TOKEN"; env | grep -c PASSWORD'), "It is set."],
        """\
        It is set.
        the model was told: {'exit_code': 1, 'stdout': 'the token is <secret:API_TOKEN>\\n0\\n', 'stderr': ''}
        """,
        ["<secret:API_TOKEN>"],
    ),
    "skills": Program(
        [
            call("load_skill", skill_name="greeting"),
            call("run_skill_script", skill_name="greeting", script_path="scripts/greet.sh", args=["Inês"]),
            "Bom dia, Inês!",
        ],
        """\
        skills: greeting
        Bom dia, Inês!
        … SkillActivated
        … ScriptRan
        """,
        ["Bom dia, Inês!"],
    ),
    "steering": Program([search_until_told] * 60, "finished The flat of the second page."),
    "streaming": Program(
        [call("roll", sides=6), "A six! What luck."],
        """\
        [roll {'sides': 6}
         -> 6]
        A six! What luck.
        finished
        """,
    ),
    "structured_output": Program(
        [
            gives(summary="x" * 81, urgency="high", products=["P-40"]),
            gives(summary="Printer on fire, scanner squeaks", urgency="high", products=["P-40", "scanner"]),
        ],
        "[high] Printer on fire, scanner squeaks: P-40, scanner",
        ["at most 80 characters"],
    ),
    "sub_conversation": Program(
        [
            calls(("research", {"question": "tides on Earth"}), ("research", {"question": "tides on Titan"})),
            TIDES,
            TIDES,
            "Earth follows the Moon, Titan follows Saturn.",
        ],
        """\
        Earth follows the Moon, Titan follows Saturn.
        3 conversations
        """,
        ["They follow the Moon.", "They follow Saturn."],
    ),
    "thinking": Program(
        ["204.", Answer(text="Many, that is to s", finish="length")], "204.\nMany, that is to s… (cut off: length)"
    ),
    "tools": Program(
        [calls(("days_between", CHRISTMAS), ("find_holidays", CHRISTMAS)), "Five working days."],
        """\
        Five working days.
        2 steps
        days_between: 7
        find_holidays: ['Christmas Day', 'Boxing Day']
        """,
        ["Boxing Day"],
    ),
    "workspace": Program(
        [
            call("read_file", path="todo.txt"),
            call("write_file", path="docs.md", content="# Docs\n"),
            "The docs are written.",
            call("write_file", path="docs.md", content="# Documentation\n"),
            "C'est fait.",
        ],
        """\
        The docs are written.
        C'est fait.
        copy: # Documentation
        project: # Docs
        """,
    ),
}
"""The programs that are run as they are; the notebook and the web API are run as their hosts run them."""

NEEDS = {"secrets_in_commands": "bubblewrap", "skills": "bubblewrap"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a README, which is the current one."""
    (tmp_path / "README.md").write_text("# Test\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_printed(printed: str, expected: str) -> None:
    """Compare line by line; `…` stands for anything."""
    lines = [line[8:] if expected.startswith(" " * 8) else line for line in expected.rstrip().splitlines()]
    patterns = [".*".join(map(re.escape, line.split(ANYTHING))) for line in lines]
    assert re.fullmatch("\n".join(patterns), printed.rstrip()), f"{printed}\nis not\n{expected}"


def test_each_program_is_here_and_as_short_as_in_a_readme() -> None:
    files = sorted(FOLDER.glob("*.py"))
    assert {file.stem for file in files} == {*PROGRAMS, "notebook", "web_api"}
    assert len(files) >= 30
    lengths = {file.name: len(file.read_text().splitlines()) for file in files}
    assert lengths.pop("web_api.py") < 80, "a whole application"
    assert {name: length for name, length in lengths.items() if length not in LINES} == {}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.needs(NEEDS[n]) if n in NEEDS else ()) for n in PROGRAMS]
)
def test_a_program_prints_what_it_should(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[name]
    with OpenAIServer(program.steps) as server:
        monkeypatch.setenv("BOUGH_BASE_URL", server.url)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    out, err = capfd.readouterr()
    check_printed(out, program.printed)
    assert err == ""
    if program.steps[0] is not search_until_told:
        assert len(server.received) == len(program.steps)
    assert [text for text in program.told if text not in said_in(server.received[-1])] == []


def test_the_settings_of_a_model_reach_it(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(["204.", "285."]) as server:
        monkeypatch.setenv("BOUGH_BASE_URL", server.url)
        runpy.run_path(str(FOLDER / "thinking.py"), run_name="__main__")
    efforts = [(each.body["reasoning_effort"], each.body["max_completion_tokens"]) for each in server.received]
    assert efforts == [("high", 4000), ("low", 200)]


def test_the_notebook_runs_beside_the_loop_of_its_host(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = (FOLDER / "notebook.py").read_text().split("# %%")

    async def run_cells() -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        for number, cell in enumerate(cells):
            exec(compile(f"#{cell}", f"cell {number}", "exec"), names)

    with OpenAIServer([call("sales_of", region="north"), "The north.", "Then the south."]) as server:
        monkeypatch.setenv("BOUGH_BASE_URL", server.url)
        asyncio.run(run_cells())
    printed = """\
        The north.
        Then the south.
        /packages/pydantic/__init__.py
        request ['user-prompt']
        response ['tool-call']
        request ['tool-return']
        response ['text']
        """
    check_printed(capfd.readouterr().out, printed)


def events_of(body: str) -> list[tuple[str, Any]]:
    """The events of a stream: name and data."""
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (.*)\ndata: (.*)\n\n", body)]


async def talk_to(app: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Send a message, approve the call that waits then, and return the events of both runs."""
    path = f"/chats/{uuid4()}"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chats", timeout=60) as client:

        async def post(url: str, **params: str) -> list[tuple[str, Any]]:
            started = await client.post(url, params=params)
            assert started.status_code == 202
            return events_of((await client.get(f"{path}/events", params=started.json())).text)

        assert (await client.get(f"{path}/events")).status_code == 404
        assert (await client.get(f"{path}/events", params={"after": -2})).status_code == 422
        sent = await post(f"{path}/messages", text="Publish: hello.")
        changes = [data["changes"] for name, data in sent if name == "StateChanged"]
        (waiting,) = [change["waiting"] for change in changes if change.get("waiting")]
        (id,) = waiting
        assert (await client.post(f"{path}/approvals/nothing")).status_code == 409
        approved = await post(f"{path}/approvals/{id}")
        everything = events_of((await client.get(f"{path}/events")).text)
        events = [event for event in (*sent, *approved) if event[0] != "delta"]
        assert events == everything[-len(events) :], "a client that comes back gets the same events"
        return sent, approved


def test_the_web_api_streams_and_takes_approvals(monkeypatch: pytest.MonkeyPatch) -> None:
    app = runpy.run_path(str(FOLDER / "web_api.py"))["app"]
    with OpenAIServer([call("publish", text="hello"), "It is published."]) as server:
        monkeypatch.setenv("BOUGH_BASE_URL", server.url)
        sent, approved = asyncio.run(talk_to(app))
    assert "ToolCalled" not in dict(sent), "nothing runs before it is approved"
    kinds = [name for name, _ in approved]
    assert kinds.index("ToolCalled") < kinds.index("ToolReturned") < kinds.index("ModelResponded")
    # The run does not wait for its reader: pieces that came before the stream was opened are in the response only.
    pieces = "".join(data for name, data in approved if name == "delta")
    assert "It is published.".endswith(pieces)
    (response,) = [data["response"] for name, data in approved if name == "ModelResponded"]
    assert [part["content"] for part in response["parts"]] == ["It is published."]
