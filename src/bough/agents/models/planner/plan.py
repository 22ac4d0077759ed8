"""The next step: find the skills, load one, run its script, answer. No call is made twice in a turn: no plan loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import cast

from bough.agents.models.planner import answer
from bough.agents.models.planner.needs import FIXED, Need
from bough.agents.models.planner.prompt import BARE_FOLDER, Prompt, PromptCommand, read_command, read_prompt
from bough.agents.models.planner.rank import RankedSkill, best_of, find_jobs, find_missing
from bough.agents.models.planner.skill import (
    Loaded,
    find_surplus,
    pick_file,
    pick_script,
    pick_section,
    read_around,
    read_skill,
)
from bough.agents.models.planner.view import DELEGATE, LOADERS, READER, RUNNER, Done, PlannerTurn
from bough.skills.match.inputs import parse_pairs
from bough.skills.model import InputMetadata
from bough.types import Json, JsonObject

_FINDERS = ("search_skills", "list_skills")


@dataclass(frozen=True, kw_only=True)
class PlannedCall:
    """A tool to call."""

    tool: str
    args: JsonObject


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A skill to use.

    Attributes:
        prompt: What it is used for: picks among its scripts, or the sections of its text.
        args: What its script is given.
        script: Set where it is known without loading.
        message: What must be accounted for before the script runs; empty for a command.
    """

    skill: str
    prompt: Prompt
    args: tuple[str, ...]
    script: str = ""
    message: str = ""


class Refusal(str):
    """An answer that says why nothing is run. One job that is refused refuses the whole message."""

    __slots__ = ()


def plan(turn: PlannerTurn) -> PlannedCall | str:
    """Return the next call, or the answer. The same turn always gives the same step."""
    choices = _choose(turn)
    if isinstance(choices, PlannedCall):
        return _check_call(turn, choices)
    if isinstance(choices, str):
        return choices
    steps = {choice.skill: _use(turn, choice) for choice in choices}
    refusal = next((step for step in steps.values() if isinstance(step, Refusal)), None)
    if refusal is not None:
        return refusal
    # Every skill is loaded before any script runs: one job that is not understood makes the planner refuse all jobs.
    calls = [step for step in steps.values() if isinstance(step, PlannedCall)]
    for call in sorted(calls, key=lambda call: call.tool not in LOADERS):
        return _check_call(turn, call)
    return answer.of_jobs({skill: step for skill, step in steps.items() if isinstance(step, str)})


def _choose(turn: PlannerTurn) -> list[Choice] | PlannedCall | str:
    message = turn.message
    prompt = read_prompt(message)
    if command := read_command(message):
        return _plan_command(turn, command, prompt)
    if turn.active:
        return [Choice(skill=_active_name(turn, prompt), prompt=prompt, args=prompt.args, message=message)]
    if turn.used and prompt.args and not prompt.words and all(need.kind == "file" for need in prompt.needs):
        return [Choice(skill=turn.used.skill, prompt=prompt, args=prompt.args, script=turn.used.script)]
    if call := _search(turn, prompt):
        return call
    entries = _entries(turn)
    jobs = find_jobs(entries, message)
    for job in jobs:
        if job.rival:
            return Refusal(answer.fits_two(job.skill, job.rival, job.prompt))
        if any(need.kind in FIXED for need in job.missing):
            return Refusal(answer.not_understood(job.skill, job.missing, job.prompt))
    choices = [Choice(skill=job.skill, prompt=job.prompt, args=job.prompt.args, message=job.message) for job in jobs]
    return choices or Refusal(answer.nothing_fits(entries))


def _plan_command(turn: PlannerTurn, command: PromptCommand, prompt: Prompt) -> list[Choice] | str:
    if command.error:
        return answer.unreadable_args(command)
    known_names = turn.names | {agent.name for agent in turn.agents}
    if command.name in known_names or not known_names:
        return [Choice(skill=command.name, prompt=prompt, args=command.args)]
    near = get_close_matches(command.name, known_names, 1)
    return answer.no_such_skill(command.name, near, (*turn.entries, *turn.agents))


def _active_name(turn: PlannerTurn, prompt: Prompt) -> str:
    return best_of([RankedSkill(name=skill.name, text=skill.text) for skill in turn.active], prompt.words).name


def _search(turn: PlannerTurn, prompt: Prompt) -> PlannedCall | None:
    """Return the call that completes the catalogue; None when it is complete, or was completed in this turn."""
    if any(_find_last_call(turn, finder) for finder in _FINDERS):
        return None
    if "search_skills" in turn.tools and (words := (*prompt.words, *prompt.kinds)):
        return PlannedCall(tool="search_skills", args={"query": " ".join(words)})
    if "list_skills" in turn.tools and not turn.entries:
        return PlannedCall(tool="list_skills", args={})
    return None


def _entries(turn: PlannerTurn) -> tuple[RankedSkill, ...]:
    """Return the catalogues with what was found in this turn; a description found replaces an empty one."""
    entries = {entry.name: entry for entry in (*turn.agents, *turn.entries)}
    for done in turn.done:
        if done.tool in _FINDERS and done.outcome == "success":
            entries |= {entry.name: entry for entry in _parse_found_skills(done.result)}
    return tuple(entries.values())


def _parse_found_skills(result: Json) -> Iterator[RankedSkill]:
    """Yield the skills in what a finder returned: a list of objects with a name and a description."""
    skills = cast("JsonObject", result).get("skills") if isinstance(result, dict) else result
    for item in cast("list[Json]", skills) if isinstance(skills, list) else ():
        if isinstance(item, dict) and "name" in item:
            fields = cast("JsonObject", item)
            yield RankedSkill(name=str(fields["name"]), text=str(fields.get("description", "")))


def _use(turn: PlannerTurn, choice: Choice) -> PlannedCall | str:
    if any(agent.name == choice.skill for agent in turn.agents):
        return _delegate(turn, choice.skill)
    if ran := _find_last_call(turn, RUNNER, choice.skill):
        return answer.of_run(ran)
    if choice.script:
        return _run(choice)
    loaded = _find_loaded(turn, choice.skill)
    if loaded is None or isinstance(loaded, str):
        return loaded or PlannedCall(tool=_loader(turn), args={"skill_name": choice.skill})
    if loaded.required_inputs:
        inputs = _read_inputs(loaded.required_inputs, turn.message)
        if inputs and not _was_given(turn, choice.skill):
            return PlannedCall(tool=_loader(turn), args={"skill_name": choice.skill, "inputs": {**inputs}})
        return answer.wants_inputs(choice.skill, loaded.required_inputs)
    if file := pick_file(loaded, turn.message):
        read = _find_last_call(turn, READER, choice.skill)
        args = {"skill_name": choice.skill, "path": file}
        return answer.of_file(choice.skill, read) if read else PlannedCall(tool=READER, args=args)
    if not loaded.scripts:
        return answer.of_text(choice.skill, pick_section(loaded, choice.prompt, skill=choice.skill))
    choice = replace(choice, script=pick_script(loaded, choice.prompt))
    return _run(choice) if not choice.message else _account(turn, choice, loaded)


def _account(turn: PlannerTurn, choice: Choice, loaded: Loaded) -> PlannedCall | Refusal:
    """Return the call of the script if skill, arguments and options account for the whole message, else a refusal."""
    prompt = read_prompt(choice.message, loaded.options)
    is_active = any(active.name == choice.skill for active in turn.active)
    text = next((entry.text for entry in _entries(turn) if entry.name == choice.skill), "")
    around = read_around(loaded.text, choice.script) if len(loaded.scripts) > 1 else ""
    missing = find_missing(
        prompt, RankedSkill(name=choice.skill, text=f"{text}. {around} {loaded.text if is_active else ''}")
    )
    if is_active:  # its trigger stands in the message, and is in no text that the planner sees
        missing = tuple(need for need in missing if need.kind in {"not", "value"})
    if _was_given(turn, choice.skill):
        missing = tuple(need for need in missing if need.kind != "pair")
    args = prompt.args or choice.args
    missing += tuple(Need(text=argument, kind="file") for argument in find_surplus(loaded, choice.script, args))
    if missing:
        return Refusal(answer.not_understood(choice.skill, missing, prompt))
    return _run(replace(choice, args=(*args, *prompt.options)))


def _delegate(turn: PlannerTurn, agent: str) -> PlannedCall | str:
    done = (done for done in reversed(turn.done) if done.tool == DELEGATE and done.args.get("agent_name") == agent)
    if (latest := next(done, None)) is not None:
        return answer.of_agent(agent, latest)
    return PlannedCall(tool=DELEGATE, args={"agent_name": agent, "prompt": turn.message})


def _run(choice: Choice) -> PlannedCall:
    script_args = [arg.removesuffix(BARE_FOLDER) for arg in choice.args]
    args = {"skill_name": choice.skill, "script_path": choice.script, "args": script_args}
    return PlannedCall(tool=RUNNER, args=args)


def _read_inputs(required_inputs: str, message: str) -> dict[str, str]:
    """Return the `name=value` of a message for the inputs that a skill asks for (`- name: what it is`)."""
    names = [line[2:].partition(":")[0].strip() for line in required_inputs.splitlines() if line.startswith("- ")]
    return parse_pairs(message, [InputMetadata(name) for name in names])


def _was_given(turn: PlannerTurn, skill: str) -> bool:
    """Whether this skill was loaded with inputs in this turn already."""
    loads = (done.args for done in turn.done if done.tool in LOADERS)
    return any(args.get("skill_name") == skill and bool(args.get("inputs")) for args in loads)


def _find_loaded(turn: PlannerTurn, skill: str) -> Loaded | str | None:
    """Return the skill as loaded in this turn, why loading failed, or None when it was not loaded yet."""
    for loader in LOADERS:
        if done := _find_last_call(turn, loader, skill):
            return answer.not_loaded(skill, done) if done.failed else read_skill(done.result)
    active = next((active for active in turn.active if active.name == skill), None)
    return read_skill(active.text) if active else None


def _find_last_call(turn: PlannerTurn, tool: str, skill: str | None = None) -> Done | None:
    """Return this turn's last call of `tool`, for `skill` where one is given."""
    done = (done for done in reversed(turn.done) if done.tool == tool)
    return next((call for call in done if skill is None or call.args.get("skill_name") == skill), None)


def _loader(turn: PlannerTurn) -> str:
    return next((loader for loader in LOADERS if loader in turn.tools), LOADERS[0])


def _check_call(turn: PlannerTurn, call: PlannedCall) -> PlannedCall | str:
    """Return `call`, or why it is not made: its tool is not offered, or it was made in this turn already."""
    if call.tool not in turn.tools:
        return answer.no_tool(call.tool, call.args)
    if any(done.tool == call.tool and done.args == call.args for done in turn.done):
        return answer.describe_repeat(call.tool)
    return call
