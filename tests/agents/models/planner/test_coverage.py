"""What is run for what people type, and what is not: the tables of prompts, and every negation before each of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bough.agents.models.planner import PlannedCall, mark_folders, plan
from bough.agents.models.planner.rank import RankedSkill
from bough.agents.models.planner.view import Done, PlannerTurn
from bough.skills import SkillRegistry

EXAMPLES = Path(__file__).parents[4] / "examples" / "skills"
TOOLS = frozenset({"load_skill", "run_skill_script"})
NEGATIONS = (
    "don't",
    "don’t",
    "dont",
    "do not",
    "please do not",
    "never",
    "you must not",
    "you should not",
    "you can't",
    "cannot",
    "no need to",
    "stop",
    "avoid",
    "skip",
    "without",
    "refrain from",
    "forget to",
    "under no circumstances",
    "no longer",
    "there is no reason to",
    "instead of",
    "rather than",
    "anything but",
    "hands off:",
    "cancel:",
    "let's not",
    "nobody may",
    "I won't",
    "not",
    "no,",
    "we shouldn't",
    "ignore this:",
    "except",
    "leave out",
    "neither",
    "hardly",
)


def read_entries() -> tuple[RankedSkill, ...]:
    registry = SkillRegistry()
    registry.discover([EXAMPLES])
    return tuple(RankedSkill(name=skill.name, text=skill.description) for skill in registry.list_all())


ENTRIES = read_entries()


def read_table(name: str) -> Iterator[tuple[str, str]]:
    table: dict[str, dict[str, list[str]]] = yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
    for outcomes in table.values():
        for outcome, prompts in outcomes.items():
            yield from ((prompt, outcome) for prompt in prompts)


PROMPTS = [*read_table("prompts.yaml"), *read_table("more_prompts.yaml"), *read_table("habits.yaml")]
NEEDLESSLY_REFUSED = {"README.md has some dead links I think, find them"}
RUNNABLE = [prompt for prompt, outcome in PROMPTS if outcome != "refuse"]


FOLDERS = frozenset({"docs", "notes", "images", "total", "README"})


def decide(message: str, folders: frozenset[str] = frozenset()) -> str:
    """Return the runs that the planner starts for `message`, `refuse` without one; skills are read from disk."""
    turn = PlannerTurn(message=mark_folders(message, folders), entries=ENTRIES, tools=TOOLS)
    runs: list[str] = []
    while isinstance(step := plan(turn), PlannedCall):
        if step.tool == "load_skill":
            result = (EXAMPLES / str(step.args["skill_name"]) / "SKILL.md").read_text(encoding="utf-8")
        else:
            runs.append(shlex.join([str(step.args["skill_name"]), *step.args["args"]]))  # pyright: ignore
            result = {"status": "success", "stdout": "done"}
        turn = replace(turn, done=(*turn.done, Done(tool=step.tool, args=step.args, result=result, outcome="success")))
    return " + ".join(runs) or "refuse"


@pytest.mark.parametrize(("prompt", "outcome"), PROMPTS)
def test_what_is_asked_is_run_and_nothing_else(prompt: str, outcome: str) -> None:
    assert decide(prompt) == ("refuse" if prompt in NEEDLESSLY_REFUSED else outcome)


@given(st.sampled_from(NEGATIONS), st.sampled_from(RUNNABLE))
def test_nothing_is_run_after_a_negation(negation: str, prompt: str) -> None:
    assert decide(f"{negation} {prompt}") == "refuse"


@pytest.mark.parametrize(("prompt", "outcome"), PROMPTS)
def test_folders_with_the_names_of_words_change_nothing(prompt: str, outcome: str) -> None:
    assert decide(prompt, FOLDERS) == decide(prompt)


@pytest.mark.parametrize(
    ("prompt", "outcome"),
    [
        ("check links in docs", "link-check docs"),
        ("are there any broken links in docs?", "link-check docs"),
        ("check the links below docs and README.md", "link-check docs README.md"),
        ("check the Markdown links from notes.", "link-check notes"),
        ("check the links in elsewhere", "refuse"),
        ("don't check links in docs", "refuse"),
        ("check links in docs except docs/old.md", "refuse"),
        ("check links in docs without images", "refuse"),
        ("broken images in README.md", "link-check README.md"),
        ("check for images in README.md", "link-check README.md"),
        ("how many words does README.md have in total?", "word-count README.md"),
        ("commits in docs", "refuse"),
        ("count words in notes", "refuse"),
    ],
)
def test_a_bare_folder_is_a_place_after_a_preposition(prompt: str, outcome: str) -> None:
    assert decide(prompt, FOLDERS) == outcome
