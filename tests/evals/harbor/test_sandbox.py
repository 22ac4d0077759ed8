"""Tasks in the local sandbox: the reward is the test script's alone, whatever the agent did before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput
from bough.evals import HarborRun, run_harbor
from bough.evals.harbor.evaluate import OWN_TASKS
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

from .conftest import WriteTask

pytestmark = [pytest.mark.anyio, pytest.mark.needs("bubblewrap")]


def agent(*commands: str) -> AgentSpec:
    """An agent that runs these commands, one after another."""
    return AgentSpec(name="a", model=ScriptedModel([*(tool_call("bash", command=c) for c in commands), "done"]))


def running_commands() -> Iterator[bytes]:
    """Yield the command line of every process of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes()


async def run(tasks: Path, who: AgentSpec | str, settings: Settings, **options: object) -> HarborRun:
    return await run_harbor(tasks, who, sandbox=True, settings=settings, **options)  # type: ignore[arg-type]


async def test_the_oracle_solves_our_tasks_and_doing_nothing_solves_none(settings: Settings) -> None:
    oracle = await run(OWN_TASKS, "oracle", settings)
    assert [(each.task, each.reward) for each in oracle.tasks] == [
        ("date-shift", 1.0),
        ("json-repair", 1.0),
        ("ledger-total", 1.0),
        ("log-triage", 1.0),
        ("rename-plan", 1.0),
    ]
    assert (oracle.solved, oracle.mean_reward, oracle.isolation, oracle.passed) == (5, 1.0, "namespaces", True)
    nothing = await run(OWN_TASKS, "nop", settings)
    assert [each.reward for each in nothing.tasks] == [0.0] * 5
    assert not nothing.passed


async def test_an_agent_that_works_is_paid_and_one_that_writes_its_reward_is_not(
    settings: Settings, write_task: WriteTask
) -> None:
    tasks = write_task("answer")
    honest = await run(tasks, agent("echo 42 > answer"), settings)
    assert (honest.tasks[0].reward, honest.tasks[0].status) == (1.0, "passed")
    own_reward = "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
    cheat = await run(tasks, agent(own_reward), settings)
    assert (cheat.tasks[0].reward, cheat.tasks[0].status) == (0.0, "failed")


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /logs/verifier; ln -s /work /logs/verifier; echo 1 > reward.txt",
        "ln -s /work/mine /logs/verifier/reward.txt; echo 1 > mine",
        "setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &",
        "echo 'print(1)' > sitecustomize.py; cp sitecustomize.py usercustomize.py; cp sitecustomize.py $HOME/",
    ],
    ids=["folder-link", "file-link", "daemon", "start-up files"],
)
async def test_tricks_earn_nothing(settings: Settings, write_task: WriteTask, command: str) -> None:
    cheat = await run(write_task("answer"), agent(command), settings)
    assert (cheat.tasks[0].reward, cheat.tasks[0].status) == (0.0, "failed")


async def test_an_agent_does_not_see_tests_or_solution(settings: Settings, write_task: WriteTask) -> None:
    look = "find / -path /usr -prune -o -name solve.sh -print -o -name test.sh -print 2>/dev/null | grep . && exit 1; "
    look += "ls /tests && exit 1; ls /solution && exit 1; echo 42 > answer"
    found = await run(write_task("answer"), agent(look), settings)
    assert found.tasks[0].reward == 1.0


async def test_an_answer_counts_though_the_agents_time_was_up(settings: Settings, write_task: WriteTask) -> None:
    tasks = write_task("answer", task_DOT_toml='[agent]\ntimeout_sec = 3\n[environment]\nworkdir = "/app"\n')
    late = await run(tasks, agent("echo 42 > answer; while :; do :; done"), settings)
    assert (late.tasks[0].reward, late.tasks[0].status) == (1.0, "passed")
    assert late.cases is not None
    assert late.cases.cases[0].data["harbor"]["agent_timed_out"] is True


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("exit 7", "failed", "test.sh wrote no reward (exit 7)"),
        ("echo 1e309 > /logs/verifier/reward.txt", "error", "not a number from 0 to 1"),
        ("echo yes > /logs/verifier/reward.txt", "error", "reward.txt is not a number"),
        ("echo -1 > /logs/verifier/reward.txt", "error", "not a number from 0 to 1"),
        ("ln -s /etc/hostname /logs/verifier/reward.txt", "error", "not a regular file"),
        ("echo 1", "failed", "test.sh wrote no reward (exit 0)"),
        ('echo \'{"a": 1, "b": "1"}\' > /logs/verifier/reward.json', "error", "not an object of numbers"),
    ],
)
async def test_a_reward_that_is_none_is_told(
    settings: Settings, write_task: WriteTask, script: str, status: str, reason: str
) -> None:
    found = await run(write_task("answer", tests__test_DOT_sh=script), "oracle", settings)
    (score,) = found.tasks
    assert (score.reward, score.status) == (0.0, status)
    assert reason in score.reason


async def test_a_test_script_that_leaves_daemons_or_never_ends_is_ended(
    settings: Settings, write_task: WriteTask
) -> None:
    marker = uuid4().hex
    write_task(
        "daemons",
        tests__test_DOT_sh="echo 0.5 > /logs/verifier/reward.txt; "
        f"setsid sh -c 'while :; do echo 0.25 > /logs/verifier/reward.txt; done # {marker}' >/dev/null 2>&1 & sleep 0",
    )
    endless = write_task(
        "endless",
        task_DOT_toml="[verifier]\ntimeout_sec = 2\n",
        tests__test_DOT_sh="while :; do :; done",
    )
    found = await run(endless, "nop", settings)
    assert [(each.task, each.status) for each in found.tasks] == [("daemons", "failed"), ("endless", "failed")]
    assert found.tasks[1].reason == "reward: verifier timed out"
    assert not any(marker.encode() in command for command in running_commands())


async def test_what_needs_an_image_is_left_out_and_named(settings: Settings, write_task: WriteTask) -> None:
    write_task("plain")
    write_task("packages", environment__Dockerfile="FROM debian:12\nRUN apt-get install -y gcc\n")
    write_task("own", environment__Dockerfile="FROM registry.example/private:1\n")
    tasks = write_task("steps", task_DOT_toml="steps = [1]\n")
    found = await run(tasks, "nop", settings)
    assert [each.task for each in found.tasks] == ["plain"]
    left_out = dict(found.left_out)
    assert left_out["packages"] == "'RUN apt-get install -y gcc' needs an image"
    assert left_out["own"] == "'FROM registry.example/private:1' needs an image"
    assert left_out["steps"] == "steps is not supported"
    with pytest.raises(InvalidInput, match="no task to run") as refused:
        await run(tasks, "nop", settings, filter="packages")
    assert "needs an image" in refused.value.hint


async def test_without_tests_the_trace_scores_tasks_with_skills_and_the_report_says_so(
    settings: Settings, write_task: WriteTask
) -> None:
    write_task("answer")
    tasks = write_task(
        "skilled",
        environment__skills__solver__SKILL_DOT_md="---\nname: solver\ndescription: Solves.\n---\nThink.",
    )
    model = ScriptedModel([tool_call("load_skill", skill_name="solver"), "done"])
    found = await run(tasks, AgentSpec(name="a", model=model), settings, skip_tests=True)
    assert [(each.task, each.reward, each.status) for each in found.tasks] == [("skilled", None, "passed")]
    assert found.left_out == (("answer", "it has no skills, so without its tests there is nothing to score"),)
    assert found.as_dict()["verified"] is False
    assert found.folder is not None
    assert "tests were left out" in (found.folder / "report.html").read_text()
    with pytest.raises(InvalidInput, match="no task to run"):
        await run(tasks, agent("echo 42 > answer"), settings, skip_tests=True, filter="answer")


async def test_skills_of_the_task_are_read_leniently_and_run_where_the_task_is(
    settings: Settings, write_task: WriteTask
) -> None:
    tasks = write_task(
        "answer",
        environment__skills__solver__SKILL_DOT_md="---\nname: Solver\ndescription: Solves.\n---\nRun scripts/go.py",
        environment__skills__solver__scripts__go_DOT_py="open('/app/answer', 'w').write('42')",
    )
    calls = [
        tool_call("load_skill", skill_name="Solver"),
        tool_call("run_skill_script", skill_name="Solver", script_path="scripts/go.py"),
        "done",
    ]
    found = await run(tasks, AgentSpec(name="a", model=ScriptedModel(calls)), settings)
    assert found.tasks[0].reward == 1.0
    assert found.cases is not None
    assert "Solver" in json.dumps(found.cases.cases[0].data["harbor"]["repairs"])
