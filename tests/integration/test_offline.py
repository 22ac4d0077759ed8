"""The offline planner in a real conversation: the example skills, the sandbox, the log.

`example_prompts.json` holds prompts in two sets: `seen` ones, which the rules were written with, and `unseen` ones,
which were written before earlier rules were run on them. A prompt is listed under the skill it should find.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bough.agents.models.planner.rank import find_jobs
from bough.agents.models.planner.view import read_catalog
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.events import open_store
from bough.events.model import ScriptRan
from bough.events.store import EventStore
from bough.settings import Settings
from bough.skills import SkillRegistry
from bough.skills.find.catalog import render_catalog

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPTS: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "example_prompts.json").read_text())
NOTHING = "nothing fits"
MISSED = {
    "Do any images fail to resolve in README.md?",
    "How many characters are in README.md?",
    "I want to publish the documentation: any broken links?",
    "Please verify that no link in the docs is broken",
    "What is the maximum revenue in sales.csv?",
    "Who contributed to this project?",
    "summarise recent commits for the team",
    "wordcount README.md",
}
"""What is refused because of a word that nothing accounts for (`revenue`, `team`, `docs`)."""

Start: TypeAlias = Callable[[], Awaitable[AsyncConversation]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example workspace as a git repository with one commit."""
    folder = tmp_path_factory.mktemp("project") / "workspace"
    shutil.copytree(EXAMPLES / "workspace", folder)
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "Add the workspace"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.fixture
async def store() -> AsyncIterator[EventStore]:
    opened = await open_store("memory:")
    yield opened
    await opened.aclose()


@pytest.fixture
async def start(store: EventStore, project: Path, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[AsyncConversation] = []
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)

    async def start() -> AsyncConversation:
        agent = AgentSpec(model="offline", skill_roots=(EXAMPLES / "skills",))
        made.append(await AsyncConversation.create(agent, workspace=project, store=store, settings=settings))
        return made[-1]

    yield start
    for conversation in made:
        await conversation.aclose()


async def ask(conversation: AsyncConversation, prompt: str) -> str:
    await conversation.send_message(prompt)
    result = await conversation.run()
    assert result.status == "finished"
    return result.output


async def scripts(conversation: AsyncConversation) -> list[ScriptRan]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, ScriptRan)]


def listed(group: str) -> list[Any]:
    return [(prompt, skill) for skill, prompts in PROMPTS[group].items() for prompt in prompts]


RUN = [(prompt, skill) for prompt, skill in listed("unseen") if skill != NOTHING and prompt not in MISSED]


@pytest.mark.parametrize(("prompt", "skill"), [*listed("seen"), *listed("unseen")])
def test_a_prompt_finds_its_skill_in_the_catalogue_of_the_examples(prompt: str, skill: str) -> None:
    registry = SkillRegistry()
    registry.discover([EXAMPLES / "skills"])
    catalog = read_catalog(render_catalog(registry.list_all(), budget_tokens=2000).text)
    job = next(iter(find_jobs(catalog, prompt)), None)
    if prompt in MISSED:
        assert job is None or (job.skill == skill and job.missing)
    else:
        options = {need.text for need in job.missing if need.kind == "value"} if job else set[str]()
        assert (job.skill if job else NOTHING) == skill
        assert options <= {"last", "week", "since", "weeks", "two weeks"}


@pytest.mark.parametrize(("prompt", "skill"), RUN)
async def test_a_plain_prompt_runs_the_right_script_and_answers_with_what_it_printed(
    start: Start, prompt: str, skill: str
) -> None:
    conversation = await start()
    answer = await ask(conversation, prompt)
    (ran,) = await scripts(conversation)
    assert (ran.skill, ran.status) == (skill, "success")
    (printed,) = [
        stored.event.result["stdout"]
        async for stored in conversation.events
        if stored.kind == "ToolReturned" and stored.event.tool == "run_skill_script"
    ]
    assert printed.strip()
    assert answer == printed.strip()


async def test_prompts_that_fit_nothing_run_nothing_and_are_told_what_there_is(start: Start) -> None:
    for prompt in PROMPTS["unseen"][NOTHING]:
        conversation = await start()
        answer = await ask(conversation, prompt)
        assert answer.startswith("Nothing fits"), prompt
        assert all(f"- {name}: " in answer for name in ("csv-profile", "git-digest", "link-check", "word-count"))
        assert await scripts(conversation) == []


async def test_a_command_counts_as_wc_does(start: Start, project: Path) -> None:
    conversation = await start()
    answer = await ask(conversation, "/word-count README.md")
    counted = subprocess.run(["wc", "-w", "README.md"], cwd=project, capture_output=True, text=True, check=True)
    assert counted.stdout.split()[0] in answer.split()
    (ran,) = await scripts(conversation)
    assert (ran.script, ran.argv) == ("scripts/count.sh", ("README.md",))


async def test_a_follow_up_in_the_same_conversation_reuses_the_skill(start: Start) -> None:
    conversation = await start()
    await ask(conversation, "/word-count README.md")
    await ask(conversation, "and for notes/ideas.md?")
    await ask(conversation, "/word-count notes/meeting.md")
    assert [ran.argv for ran in await scripts(conversation)] == [
        ("README.md",),
        ("notes/ideas.md",),
        ("notes/meeting.md",),
    ]


async def test_two_jobs_in_one_message_run_two_skills(start: Start) -> None:
    conversation = await start()
    answer = await ask(conversation, "Profile sales.csv and count the words in README.md.")
    assert [(ran.skill, ran.argv) for ran in await scripts(conversation)] == [
        ("csv-profile", ("sales.csv",)),
        ("word-count", ("README.md",)),
    ]
    assert answer.startswith("csv-profile:\nsales.csv: ")
    assert "\n\nword-count:\n" in answer


async def test_a_script_that_fails_is_reported_and_the_conversation_goes_on(start: Start) -> None:
    conversation = await start()
    answer = await ask(conversation, "profile nothing-here.csv")
    assert answer.startswith("scripts/profile.py of the skill csv-profile failed with exit code")
    assert "nothing-here.csv" in answer
    assert "amount" not in answer
    assert "columns" in await ask(conversation, "profile sales.csv")


async def test_a_missing_argument_says_what_the_script_wants(start: Start) -> None:
    answer = await ask(await start(), "/csv-profile")
    assert "usage" in answer.lower()
    assert "/csv-profile ARGUMENTS" in answer


async def test_in_a_library_too_big_for_the_prompt_the_skill_is_searched_for(
    project: Path, store: EventStore, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    shutil.copytree(EXAMPLES / "skills", library)
    for number in range(300):
        folder = library / f"filler-{number:03}"
        folder.mkdir()
        head = f"name: filler-{number:03}\ndescription: Prepares form {number} for the tax office."
        (folder / "SKILL.md").write_text(f"---\n{head}\n---\nFill it in.\n")
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    agent = AgentSpec(model="offline", skill_roots=(library,))
    conversation = await AsyncConversation.create(agent, workspace=project, store=store, settings=settings)
    async with conversation:
        counted = await ask(conversation, "How many words does README.md contain?")
        assert "words" in counted
        assert [ran.skill for ran in await scripts(conversation)] == ["word-count"]
        called = [stored.event.tool async for stored in conversation.events if stored.kind == "ToolCalled"]
        assert called == ["search_skills", "load_skill", "run_skill_script"]
        assert (await ask(conversation, "Who is the president of Brazil?")).startswith("Nothing fits")


async def test_no_tokens_are_used(start: Start) -> None:
    conversation = await start()
    await ask(conversation, "/word-count README.md")
    assert conversation.usage.input_tokens == conversation.usage.output_tokens == 0
