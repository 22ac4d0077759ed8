"""Tasks on a real container engine without a registry: builds, trials, rewards, and what is missing by name."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import SandboxUnavailable
from bough.evals import HarborRun, run_harbor
from bough.evals.harbor.evaluate import OWN_TASKS
from bough.evals.harbor.image import BASE_IMAGE, ImageBuilder
from bough.evals.harbor.task import list_tasks
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from bough.testing.docker_engine import engine, make_image

from .conftest import WriteTask

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def container_engine() -> Iterator[str]:
    """A real engine with the base image of our tasks and nothing else."""
    with (
        tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as folder,
        engine(Path(folder)) as host,
    ):
        make_image(host, name=f"{BASE_IMAGE}:latest")
        yield host


def agent(*commands: str) -> AgentSpec:
    """An agent that runs these commands, one after another."""
    return AgentSpec(name="a", model=ScriptedModel([*(tool_call("bash", command=c) for c in commands), "done"]))


async def run(tasks: Path, who: AgentSpec | str, settings: Settings, host: str, **options: object) -> HarborRun:
    return await run_harbor(tasks, who, settings=settings, docker_host=host, **options)  # type: ignore[arg-type]


async def test_the_oracle_solves_our_tasks_and_doing_nothing_solves_none(
    settings: Settings, container_engine: str
) -> None:
    oracle = await run(OWN_TASKS, "oracle", settings, container_engine)
    assert (oracle.solved, oracle.mean_reward, oracle.isolation, len(oracle.tasks)) == (5, 1.0, "container", 5)
    nothing = await run(OWN_TASKS, "nop", settings, container_engine)
    assert [each.reward for each in nothing.tasks] == [0.0] * 5
    counts = nothing.builds.as_dict()
    assert (counts["cached"], counts["built"]) == (5, 0), "the same content is built once"
    import docker

    client = docker.DockerClient(container_engine)
    assert client.containers.list(all=True) == [], "no container is left, of builds and trials"
    client.close()


@pytest.mark.parametrize(
    "command",
    [
        "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "python3 -c \"import os, shutil; shutil.rmtree('/logs'); os.mkdir('/app/verifier'); "
        "os.symlink('/app', '/logs'); open('/app/verifier/reward.json', 'w').write('1')\"",
        "(while :; do echo 1 > /logs/verifier/reward.txt; done) >/dev/null 2>&1 & echo started",
        "ls /tests /solution && echo 42 > /app/answer",
    ],
    ids=["reward", "link", "daemon", "looking"],
)
async def test_an_agent_that_is_root_earns_nothing_by_tricks(
    settings: Settings, write_task: WriteTask, container_engine: str, command: str
) -> None:
    cheat = await run(write_task("answer"), agent(command), settings, container_engine)
    assert (cheat.tasks[0].reward, cheat.tasks[0].status) == (0.0, "failed")


async def test_what_root_changed_in_the_system_is_told_with_the_score(
    settings: Settings, write_task: WriteTask, container_engine: str
) -> None:
    changing = agent("echo 42 > answer; echo x > /usr/bin/planted")
    found = await run(write_task("answer"), changing, settings, container_engine)
    assert found.tasks[0].reward == 1.0
    assert found.cases is not None
    assert found.cases.cases[0].data["harbor"]["changed"] == ["/usr/bin/planted"]
    assert found.folder is not None
    assert "/usr/bin/planted" in (found.folder / "report.html").read_text()


async def test_a_task_that_cannot_build_is_an_error_and_the_others_run(
    settings: Settings, write_task: WriteTask, container_engine: str
) -> None:
    write_task("broken", environment__Dockerfile="FROM bough-task-base\nRUN exit 3\n")
    write_task("endless", environment__Dockerfile="FROM bough-task-base\nRUN while :; do :; done\n",
               task_DOT_toml="[environment]\nbuild_timeout_sec = 2\n")  # fmt: skip
    write_task("baseless", environment__Dockerfile="FROM absent.example/base:1\n")
    tasks = write_task("fine")
    found = await run(tasks, "oracle", settings, container_engine)
    scores = {each.task: each for each in found.tasks}
    assert {name: each.status for name, each in scores.items()} == {
        "baseless": "error",
        "broken": "error",
        "endless": "error",
        "fine": "passed",
    }
    assert "absent.example/base:1 is not in the engine" in scores["baseless"].reason
    assert "exit 3" in scores["broken"].reason or "code: 3" in scores["broken"].reason
    assert "longer than 2 s" in scores["endless"].reason
    built = found.builds.as_dict()
    assert (built["failed"], built["retries"]) == (3, 2), "what fails by itself is tried twice more, a bound is final"


FORKS = "import os, time\nwhile True:\n  try: os.fork() or time.sleep(99)\n  except OSError: pass"


async def test_a_build_that_forks_without_end_takes_no_more_than_its_task_may(
    settings: Settings, write_task: WriteTask, container_engine: str
) -> None:
    tasks = write_task(
        "forks",
        environment__Dockerfile=f"FROM bough-task-base\nRUN {json.dumps(['python3', '-c', FORKS])}\n",
        task_DOT_toml="[environment]\nbuild_timeout_sec = 3\nmemory_mb = 64\n",
    )
    found = await run(tasks, "oracle", settings, container_engine)
    assert [(each.status, each.reward) for each in found.tasks] == [("error", None)], found.tasks


async def test_what_tests_and_agents_leave_and_fill_is_ended(
    settings: Settings, write_task: WriteTask, container_engine: str
) -> None:
    daemon = (
        "(while :; do echo 0.25 > /logs/verifier/late; done) >/dev/null 2>&1 & echo 0.5 > /logs/verifier/reward.txt"
    )
    tasks = write_task("daemon", tests__test_DOT_sh=daemon)
    left = await run(tasks, "nop", settings, container_engine)
    assert (left.tasks[0].reward, left.tasks[0].status) == (0.5, "failed"), "it ends with its script"
    full = write_task("full", task_DOT_toml='[environment]\nworkdir = "/app"\nmemory_mb = 256\nstorage_mb = 16\n')
    fill = 'python3 -c \'import time; open("/full", "wb").write(bytes(32 << 20)); time.sleep(99)\''
    found = await run(full, agent(fill, "> /full; echo 42 > answer"), settings, container_engine, filter="full")
    assert found.tasks[0].reward == 1.0, found.tasks[0].reason
    assert found.cases is not None and found.folder is not None
    page = (found.folder / "report.html").read_text()
    assert "disk_full" in page, "the agent is told why its command ended"


def test_a_build_ends_when_the_disk_is_nearly_full(write_task: WriteTask, container_engine: str) -> None:
    tasks = write_task("endless", environment__Dockerfile="FROM bough-task-base\nRUN while :; do :; done\n")
    builder = ImageBuilder(container_engine, min_free_bytes=1 << 60)
    try:
        begun = time.monotonic()
        (built,) = builder.build_all(list_tasks(tasks).tasks).images
        assert "disk is nearly full" in built.reason
        assert time.monotonic() - begun < list_tasks(tasks).tasks[0].build_timeout_seconds
    finally:
        builder.close()


async def test_a_rebuild_and_another_content_are_built(
    settings: Settings, write_task: WriteTask, container_engine: str
) -> None:
    tasks = write_task("fresh", environment__Dockerfile="FROM bough-task-base\nWORKDIR /app\nENV A=1\n")
    how = {"build_only": True, "prune_interval": 1}
    builds = [
        await run(tasks, "nop", settings, container_engine, **how, rebuild=again) for again in (False, False, True)
    ]
    assert [each.builds.images[0].status for each in builds] == ["built", "cached", "built"]
    assert all(each.passed and each.run is None for each in builds)
    write_task("fresh", environment__Dockerfile="FROM bough-task-base\nWORKDIR /app\nENV A=2\n")
    changed = await run(tasks, "nop", settings, container_engine, **how)
    assert changed.builds.images[0].status == "built"


async def test_without_an_engine_the_sandbox_is_offered(settings: Settings, write_task: WriteTask) -> None:
    write_task("packages", environment__Dockerfile="FROM bough-task-base\nRUN true\n")
    with pytest.raises(SandboxUnavailable) as refused:
        await run(write_task("answer"), "nop", settings, "unix:///nothing.sock")
    assert "--sandbox runs 1 of 2 tasks" in refused.value.hint
