"""The first screen, and the list of all commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from bough import __version__
from bough.cli.app import NOUNS
from bough.cli.render import Report
from bough.cli.text import Line, line
from bough.settings import Settings

_INTRODUCTION = "agents whose conversations fork like git branches"

SUMMARIES: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "demo": "Show bough at work on example files, offline.",
        "init": "Start a project with an agent and a skill.",
    },
    "Run and talk": {
        "run": "Start a conversation and print its answer.",
        "chat": "Talk with an agent.",
        "resume": "Continue a conversation: finish its run, or answer PROMPT.",
        "fork": "Fork a conversation.",
        "approve": "Approve pending tool calls and continue.",
        "reject": "Reject pending tool calls and continue.",
        "answer": "Answer a pending question or external call and continue.",
        "replay": "Run a conversation again and show what differs.",
        "try": "Try variants of the work in branches, judged by a check.",
    },
    "Look back": {
        "conv": "List, inspect and manage conversations.",
        "web": "Show conversations in a browser.",
        "bisect": "Find the step that broke the files.",
    },
    "Extend": {
        "skills": "List, check and install skills.",
        "agents": "Show and check the agents of config.yaml.",
    },
    "Scale": {
        "tasks": "List, follow, answer and cancel tasks.",
        "worker": "Run tasks until stopped.",
        "serve": "Serve conversations over HTTP.",
        "mcp": "Serve conversations to an MCP client over stdio.",
        "acp": "Serve conversations to an editor over the Agent Client Protocol.",
        "a2a": "Serve agents to A2A clients.",
        "keys": "Create, list, rotate and revoke keys of the agent server.",
        "tenants": "List, disable and enable tenants of the agent server.",
    },
    "Check": {
        "doctor": "Check what works on this machine, and show how to fix the rest.",
        "exec": "Run a script in the sandbox.",
        "eval": "Run evals, score them and compare runs.",
        "budgets": "List, show and change budgets that conversations share.",
        "schema": "Print the JSON schema of what a command prints, or of a file.",
    },
}
"""The commands by what they are for. A summary is the first sentence of the command's help; a test compares them."""


def list_commands() -> Report:
    """Return the help of `bough` itself: every command with one line."""
    width = max(len(name) for group in SUMMARIES.values() for name in group)
    blocks = [
        line("Usage: bough COMMAND [ARGUMENTS] [OPTIONS]"),
        *(
            output_line
            for group, commands in SUMMARIES.items()
            for output_line in (
                line(),
                line((group, "strong")),
                *(
                    line("  ", (f"{name:<{width}}", "id"), f"  {summary}", hang=width + 4)
                    for name, summary in commands.items()
                ),
            )
        ),
        line(),
        line(("Options of every command", "strong")),
        line("  --home DIR   Data folder. [env: BOUGH_HOME; default: ~/.bough]", hang=15),
        line("  --store URL  Event store. [env: BOUGH_STORE]", hang=15),
        line("  --json       Print the result as JSON.", hang=15),
        line("  -h, --help   Show help with examples.", hang=15),
        line("  --version    Print the version, without a command.", hang=15),
    ]
    data = {name: _list_verbs(name) for group in SUMMARIES.values() for name in group}
    return Report(command="bough", data={"version": __version__, "commands": data}, blocks=blocks)


def report_version() -> Report:
    """Return the answer to `bough --json --version`."""
    return Report(command="version", data={"version": __version__}, blocks=[line(f"bough {__version__}")])


def show_first_screen(settings: Settings) -> Report:
    """Return what `bough` alone prints: what to type first, and what works here. Reads settings and names of files."""
    skills = _count_skills(settings)
    start = (
        [('bough run "profile sales.csv"', "one task, to its end"), ("bough skills", "the skills that apply here")]
        if skills
        else [("bough demo", "bough at work on example files, offline"), ("bough init", "start a project here")]
    )
    examples = [
        *start,
        ("bough chat", "a conversation at the keyboard"),
        ('bough fork - "and prices.csv?"', "branch off the latest one, try again"),
    ]
    width = max(len(group) for group in SUMMARIES)
    return Report(
        command="bough",
        data=list_commands().data,
        blocks=[
            line((f"bough {__version__}", "strong"), f": {_INTRODUCTION}", hang=2),
            line("usage: bough COMMAND [ARGUMENTS] [OPTIONS]", hang=2),
            line(),
            *(line("  ", (f"{command:<32}", "id"), f"  {text}", hang=36) for command, text in examples),
            line(),
            *(
                line((f"{group:<{width}}", "strong"), f"  {'  '.join(commands)}", hang=width + 2)
                for group, commands in SUMMARIES.items()
            ),
            line(),
            line("all commands: bough help   examples: bough help run", hang=2),
            *_describe_machine(settings, skills),
        ],
    )


def _list_verbs(name: str) -> list[str]:
    return list(NOUNS[name][1]) if name in NOUNS else []


def _describe_machine(settings: Settings, skills: int) -> Iterator[Line]:
    from bough.agents.models.resolve import name_default_model

    model = settings.model or name_default_model(os.environ)
    reason = " (no key is set)" if model == "offline" and settings.model is None else ""
    sandbox = settings.executor
    if sandbox == "sandbox":  # not probed, because that takes longer than everything else here
        sandbox = "bubblewrap" if shutil.which("bwrap") else "see bough doctor"
    yield line((f"model: {model}{reason}   sandbox: {sandbox}   skills here: {skills}", "dim"), hang=2)


def _count_skills(settings: Settings) -> int:
    """Return the number of files of skills that apply here, without the built-in ones. Reads no file."""
    from bough.skills.find.discover import find_skill_files
    from bough.skills.find.places import list_places

    places = list_places(Path.cwd(), home=settings.home, roots=settings.skill_roots)
    return sum(1 for root in places if root.scope != "builtin" for _ in find_skill_files(root, []))
