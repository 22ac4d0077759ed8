"""Reading tasks and their Dockerfiles: every fault is named by task and field, and the others stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bough.errors import InvalidInput
from bough.evals.harbor.dockerfile import find_base_images, plan_sandbox
from bough.evals.harbor.image import pack_context
from bough.evals.harbor.task import list_tasks

from .conftest import WriteTask


@pytest.mark.parametrize(
    ("toml", "field", "message"),
    [
        ("steps = [1]", "steps", "steps is not supported"),
        ("[environment]\ngpus = 1", "environment.gpus", "gpus is not supported"),
        ('[environment]\nos = "windows"', "environment.os", "only Linux"),
        ("[environment]\ncpus = -1", "environment.cpus", "not a number above 0"),
        ("[agent]\ntimeout_sec = inf", "agent.timeout_sec", "not a number above 0"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec", "not a number above 0"),
        ('[verifier]\ntimeout_sec = "10"', "verifier.timeout_sec", "not a number above 0"),
        ("[verifier]\ntimeout_sec = true", "verifier.timeout_sec", "not a number above 0"),
        ('[environment]\nmemory = "lots"', "environment.memory", "not a size"),
        ("[environment]\nmemory_mb = 0", "environment.memory_mb", "not a number above 0"),
        ('[environment]\nworkdir = "app"', "environment.workdir", "not an absolute path"),
        ('[verifier]\nenvironment_mode = "separate"', "verifier.environment_mode", "separate image"),
        ('[environment]\nnetwork_mode = "allowlist"', "environment.network_mode", "not supported"),
        ("[verifier.env]\nA = 1", "verifier.env", "not an environment variable"),
        ("agent = 3", "agent", "not a table"),
        ("= no toml", "", "not TOML"),
    ],
)
def test_a_fault_is_named_by_task_and_field(write_task: WriteTask, toml: str, field: str, message: str) -> None:
    write_task("good")
    listing = list_tasks(write_task("bad", task_DOT_toml=toml))
    assert [task.name for task in listing.tasks] == ["good"]
    (fault,) = listing.faults
    assert (fault.case, fault.field) == ("bad", field)
    assert message in fault.message


def test_what_a_task_lacks_is_named(write_task: WriteTask, tmp_path: Path) -> None:
    write_task("no-prompt", instruction_DOT_md="")
    write_task("no-tests", tests__test_DOT_sh="")
    write_task("compose")
    (tmp_path / "tasks" / "compose" / "environment" / "docker-compose.yaml").write_text("x")
    (tmp_path / "tasks" / "new").mkdir()
    (tmp_path / "tasks" / "new" / "task.md").write_text("x")
    (tmp_path / "tasks" / ".hidden").mkdir()
    (tmp_path / "tasks" / ".hidden" / "task.toml").write_text("")
    listing = list_tasks(tmp_path / "tasks")
    assert listing.tasks == ()
    assert sorted((fault.case, fault.code) for fault in listing.faults) == [
        ("compose", "unsupported"),
        ("new", "unsupported"),
        ("no-prompt", "no-prompt"),
        ("no-tests", "file-missing"),
    ]


def test_fields_have_the_values_of_the_schema(write_task: WriteTask) -> None:
    toml = """
        version = "1.0"
        [agent]
        timeout_sec = 900.5
        user = 1000
        [environment]
        memory = "2G"
        storage_mb = 100
        docker_image = "x:1"
        allow_internet = true
        [environment.env]
        A = "1"
    """
    text = "<!-- harbor canary GUID 1 -->\n# canary 2\nDo it.\n"
    tasks = write_task("t", task_DOT_toml=toml, instruction_DOT_md=text)
    (task,) = list_tasks(tasks).tasks
    assert (task.agent_timeout_seconds, task.agent_user, task.verifier_timeout_seconds) == (900.5, "1000", 600.0)
    assert (task.memory_bytes, task.storage_bytes, task.cpus) == (2 << 30, 100 << 20, 1.0)
    assert (task.image, task.wants_network, task.env, task.instruction) == ("x:1", True, {"A": "1"}, "Do it.")


@pytest.mark.parametrize(
    ("toml", "wants_network"),
    [
        ("[environment]", True),
        ("[environment]\nallow_internet = false", False),
        ('[environment]\nnetwork_mode = "no-network"', False),
        ('[environment]\nnetwork_mode = "public"', True),
    ],
)
def test_a_task_has_a_network_unless_it_says_otherwise(write_task: WriteTask, toml: str, wants_network: bool) -> None:
    (task,) = list_tasks(write_task("t", task_DOT_toml=toml)).tasks
    assert task.wants_network is wants_network


def test_one_name_twice_keeps_the_first(write_task: WriteTask, tmp_path: Path) -> None:
    write_task("a/same")
    listing = list_tasks(write_task("b/same"))
    assert [task.folder for task in listing.tasks] == [tmp_path / "tasks" / "a" / "same"]
    assert [(fault.code, fault.case) for fault in listing.faults] == [("duplicate-id", "same")]
    with pytest.raises(InvalidInput, match="no task that matches 'z'"):
        list_tasks(tmp_path / "tasks", "z")


def test_base_images_are_found_through_arguments_and_stages() -> None:
    text = """
    # syntax=docker/dockerfile:1
    ARG TAG=3.13
    ARG WHICH="slim"
    FROM --platform=linux/amd64 python:${TAG}-$WHICH AS base
    FROM node:${NODE:-22} as web
    RUN echo \\
        FROM nothing
    FROM base
    FROM scratch
    """
    assert find_base_images(text) == ["python:3.13-slim", "node:22"]


@pytest.mark.parametrize(
    "line",
    [
        "RUN pip install x",
        "COPY ../tests /app/tests",
        "COPY --from=base /x /app/x",
        "COPY data /etc/data",
        "ADD https://example.com/x /app/x",
        "WORKDIR /usr/lib/x",
        "USER agent",
        'CMD ["x"]',
        "RUN mkdir -p /app/x && rm -rf /",
        "RUN mkdir -p /app/../etc",
    ],
)
def test_an_instruction_that_needs_an_image_is_told(write_task: WriteTask, line: str) -> None:
    tasks = write_task("t", environment__Dockerfile=f"FROM debian:12\nWORKDIR /app\n{line}\n", environment__data__x="1")
    (task,) = list_tasks(tasks).tasks
    assert plan_sandbox(task.environment, image=None, workdir=None, env={}).refused_instruction == line


def test_the_sandbox_lays_out_what_a_dockerfile_copies(write_task: WriteTask) -> None:
    dockerfile = """
        FROM python:3.13-slim
        WORKDIR /srv/task
        ENV A=1 B="two words"
        COPY data /srv/task/in
        COPY one.txt two.txt ./
        COPY one.txt renamed.txt
        RUN mkdir -p out /srv/task/deep/er
        """
    given = {"environment__data__x_DOT_csv": "x", "environment__one_DOT_txt": "1", "environment__two_DOT_txt": "2"}
    (task,) = list_tasks(write_task("t", environment__Dockerfile=dockerfile, **given)).tasks
    plan = plan_sandbox(task.environment, image=None, workdir=None, env={"C": "3"})
    assert plan.refused_instruction is None
    assert (plan.workdir, plan.env) == ("/srv/task", {"A": "1", "B": "two words", "C": "3"})
    assert sorted(each.target for each in plan.files) == ["in/x.csv", "one.txt", "renamed.txt", "two.txt"]
    assert plan.folders == ["out", "deep/er"]


def test_a_context_has_the_same_bytes_for_the_same_content_and_no_link_that_leads_out(tmp_path: Path) -> None:
    contexts: list[bytes] = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x").write_text("1")
        (folder / "secret").symlink_to("/etc/passwd")
        contexts.append(pack_context(folder))
    assert contexts[0] == contexts[1]
    assert b"secret" not in contexts[0]


@pytest.mark.needs("bubblewrap")
def test_the_command_says_what_it_solved_and_exits_by_the_mean_reward(write_task: WriteTask, tmp_path: Path) -> None:
    bough = Path(sys.executable).with_name("bough")
    tasks = write_task("answer")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [bough, "eval", "harbor", *args, str(tasks)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    solved = run("--sandbox", "--agent", "oracle")
    assert solved.returncode == 0, solved.stderr
    assert "solved 1 of 1, isolation namespaces" in solved.stdout
    assert run("--sandbox", "--agent", "nop").returncode == 1
    assert run("--sandbox", "--agent", "nop", "--threshold", "0").returncode == 0
    assert run("--dry-run").returncode == 0
    refused = run("--filter", "none-such")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
