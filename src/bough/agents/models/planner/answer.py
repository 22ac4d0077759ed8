"""The offline planner's answers, which report nothing but the results of scripts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bough.agents.models.planner.needs import Need
from bough.agents.models.planner.prompt import BARE_FOLDER, Prompt, PromptCommand
from bough.agents.models.planner.rank import RankedSkill
from bough.agents.models.planner.view import Done
from bough.types import JsonObject

_MAX_CHARS = 20_000
_MAX_ERROR_CHARS = 2_000
_MAX_LISTED = 20
_USAGE = re.compile(r"^\s*usage\b|following arguments are required|missing argument|too few arguments", re.I | re.M)

_ADVICE: Mapping[str, str] = {
    "TIMEOUT": "Try a smaller input, or allow it more time.",
    "NO_CODE_EXECUTOR": "No executor is configured to run scripts.",
    "SKILL_NOT_FOUND": "Ask for the list of skills.",
    "SCRIPT_NOT_FOUND": "The skill's instructions name a script that it does not have; fix its SKILL.md.",
    "UNSUPPORTED_SCRIPT_TYPE": "Its interpreter is not installed; install it, or use another skill.",
}


def of_run(done: Done) -> str:
    """Return the script's output, or why it failed and what to try."""
    result = done.fields
    if done.outcome != "success" or not result:
        return _describe_unfinished(done)
    if done.failed:
        return _script_failed(done, result)
    out = [_cut_text(_text(result.get("stdout")).strip(), _MAX_CHARS)]
    if warning := _text(result.get("stderr")).strip():
        out.append(f"{_script(done)} also printed to stderr:\n{_cut_text(warning, _MAX_ERROR_CHARS)}")
    if files := _files(result):
        out.append(f"Files it created: {', '.join(files)}")
    return "\n\n".join(filter(None, out)) or f"{_script(done)} succeeded without output."


def of_jobs(answers: Mapping[str, str]) -> str:
    """Return the answers to one message: a single one as it is, several under their skills' names."""
    if len(answers) == 1:
        return next(iter(answers.values()))
    return "\n\n".join(f"{skill}:\n{answer}" for skill, answer in answers.items())


def of_text(skill: str, section: str) -> str:
    """Return a section of a skill without scripts, marked as the skill's own text."""
    if not section:
        return f"The skill {skill} has neither scripts nor instructions, so it cannot answer this."
    return (
        f"The skill {skill} has no script to run, and I cannot follow instructions myself. "
        f"This is its text:\n\n{_cut_text(section, _MAX_CHARS)}"
    )


def of_file(skill: str, done: Done) -> str:
    """Return a file of a skill, or why it could not be read."""
    if done.failed:
        return f"{done.args.get('path')} of the skill {skill} could not be read: {_reason(done)}"
    text = done.result if isinstance(done.result, str) else json.dumps(done.result, indent=2, ensure_ascii=False)
    return _cut_text(text, _MAX_CHARS)


def of_agent(agent: str, done: Done) -> str:
    """Return a sub-agent's answer, or why it gave none."""
    if done.outcome != "success":
        return f"The agent {agent} gave no answer: {_reason(done)}"
    text = done.result if isinstance(done.result, str) else json.dumps(done.result, indent=2, ensure_ascii=False)
    return f"{agent} answers:\n\n{_cut_text(text.strip(), _MAX_CHARS)}"


def wants_inputs(skill: str, inputs: str) -> str:
    """Return the inputs that a skill asks for first."""
    return f"The skill {skill} needs these inputs first:\n{inputs.strip()}\n\nPass them as /{skill} name=value …"


NOTHING_FITS = "Nothing fits: no skill here covers that request, and without a language model I do not guess."
"""How the planner's answer starts if no skill covers a request."""

NOT_RUN = "Not run:"
"""How it starts if a skill covers a part of the request only, or two skills cover it."""


def nothing_fits(entries: Sequence[RankedSkill]) -> str:
    """Return that no skill fits, and which skills there are."""
    return f"{NOTHING_FITS}\n\n{_offer(entries)}"


def not_understood(skill: str, missing: Sequence[Need], prompt: Prompt) -> str:
    """Return that nothing is run because the skill does not account for some words, and what to type."""
    texts = {need.text for need in missing}
    if refused := [need.text for need in missing if need.kind == "not"]:
        return f"{NOT_RUN} the request says not to ({_quote(refused)}). Ask only for what is to be done."
    if files := [need.text for need in missing if need.kind == "file"]:
        reason = f"{skill} cannot be used on {_quote(files)}."
    else:
        reason = (
            f"{skill} fits best, but I do not know what to do about {_quote(dict.fromkeys(n.text for n in missing))}."
        )
    command = _type(skill, [argument for argument in prompt.args if argument not in texts])
    return f"{NOT_RUN} {reason}\nTo run it without: {command}"


def fits_two(skill: str, rival: str, prompt: Prompt) -> str:
    """Return that nothing is run because two skills fit equally well, and what to type."""
    commands = f"{_type(skill, prompt.args)} or {_type(rival, prompt.args)}"
    return f"{NOT_RUN} {skill} and {rival} fit equally well.\nType {commands}"


def _quote(words: Iterable[str]) -> str:
    return ", ".join(f"“{word.removesuffix(BARE_FOLDER)}”" for word in words)


def _type(skill: str, args: Sequence[str]) -> str:
    return shlex.join([f"/{skill}", *(arg.removesuffix(BARE_FOLDER) for arg in args)])


def no_such_skill(name: str, near: Sequence[str], entries: Sequence[RankedSkill]) -> str:
    """Return that no skill has that name, and the nearest names."""
    head = f"There is no skill named {name}." + "".join(f" Did you mean /{other}?" for other in near)
    return f"{head}\n\n{_offer(entries)}"


def unreadable_args(command: PromptCommand) -> str:
    """Return why the arguments of a command could not be read."""
    return f"The arguments after /{command.name} cannot be read: {command.error}. Close the quotation or escape it."


def not_loaded(skill: str, done: Done) -> str:
    """Return why a skill could not be loaded."""
    return f"The skill {skill} could not be loaded: {_reason(done)}"


def no_tool(tool: str, args: JsonObject) -> str:
    """Return that a tool the plan needs is not available."""
    skill = args.get("skill_name")
    need = f"To use the skill {skill} I would have to call {tool}" if skill else f"I would have to call {tool}"
    return f"{need}, and that tool is not available in this conversation."


def describe_repeat(tool: str) -> str:
    """Return that the next call would repeat an earlier one, which ends the turn."""
    return f"I stopped: the next step would repeat a call of {tool} that was already made in this turn."


def _describe_unfinished(done: Done) -> str:
    match done.outcome:
        case "denied":
            return f"{_script(done)} was not run: {_reason(done)}"
        case "interrupted":
            return f"{_script(done)} was interrupted, so there is no result: {_reason(done)}\nAsk again to rerun it."
        case _:
            return f"{_script(done)} could not be run: {_reason(done)}"


def _script_failed(done: Done, result: JsonObject) -> str:
    stderr = _text(result.get("stderr")).strip()
    code = _text(result.get("error_code"))
    how = ["timed out" if result.get("timed_out") else "failed"]
    if result.get("exit_code") is not None:
        how.append(f"with exit code {result['exit_code']}")
    if code:
        how.append(f"({code})")
    detail = stderr or _text(result.get("error")).strip()
    parts = [f"{_script(done)} {' '.join(how)}.", _tail(detail, _MAX_ERROR_CHARS)]
    if printed := _text(result.get("stdout")).strip():
        parts.append(f"Before that it printed:\n{_cut_text(printed, _MAX_ERROR_CHARS)}")
    return "\n\n".join(filter(None, [*parts, _advice(done, code, detail)]))


def _advice(done: Done, code: str, detail: str) -> str:
    skill = _text(done.args.get("skill_name"))
    if code in _ADVICE:
        return _ADVICE[code]
    args: list[Any] = done.args.get("args") or []
    supplied = f"Its arguments were: {shlex.join(map(str, args))}." if args else "No arguments were given."
    if _USAGE.search(detail):
        return f"{supplied[:-1]}; see the usage above. Try: /{skill} ARGUMENTS"
    return f"{supplied} Check them, or pass others: /{skill} ARGUMENTS"


def _script(done: Done) -> str:
    return f"{done.args.get('script_path', 'The script')} of the skill {done.args.get('skill_name', '?')}"


def _reason(done: Done) -> str:
    if result := done.fields:
        code, error = _text(result.get("error_code")), _text(result.get("error") or result.get("stderr"))
        return _cut_text(" ".join(filter(None, [error, f"({code})" if code else ""])), _MAX_ERROR_CHARS) or "no reason"
    return _cut_text(_text(done.result).strip(), _MAX_ERROR_CHARS) or "no reason was given"


def _offer(entries: Sequence[RankedSkill]) -> str:
    if not entries:
        return "No skills found in this project."
    lines = [f"- {entry.name}: {_first_sentence(entry.text)}".rstrip(": ") for entry in entries[:_MAX_LISTED]]
    more = [f"- and {len(entries) - _MAX_LISTED} more"] if len(entries) > _MAX_LISTED else []
    return "\n".join(["What I can do:", *lines, *more])


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]


def _files(result: JsonObject) -> list[str]:
    files: Any = result.get("output_files") or []
    return [str(file.get("path", file) if isinstance(file, dict) else file) for file in files]  # pyright: ignore


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cut_text(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars].rstrip()}\n… ({len(text) - chars} more characters)"


def _tail(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"({len(text) - chars} characters before) …\n{text[-chars:].lstrip()}"
