"""What the guard costs a tool call: its rules against reading the syntax tree alone, a hook against starting a shell.

The strict floor of a review is one parse of the same command line by tree-sitter, which is C alone; the fair one also
looks at every node of the tree once from Python and at where each word would be a file, as any rule about commands
must. The floor of a hook is `/bin/sh -c true` started and awaited by asyncio; the floor of masking is one search for
the plain value by `str.replace`.
"""

from __future__ import annotations

import asyncio
import random
import string
import tempfile
from pathlib import Path

import tree_sitter_bash
from tree_sitter import Language, Parser

from bough.guard import (
    AllowList,
    CallRules,
    ConfirmRisky,
    Guard,
    Hook,
    HookKind,
    HookSet,
    Masker,
    RuleAnalyzer,
    ToolRequest,
)
from harness import compare, compare_async

COMMAND = "cd src && for f in *.py; do grep -n 'TODO' \"$f\" | sort -u | head -5; done; git status --short > out.txt"
REVIEWS = 200
HOOKS = 10


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name)
        command = ToolRequest(id="c", tool="run_command", arguments={"command": COMMAND}, workspace=workspace)
        skill = ToolRequest(id="c", tool="load_skill", arguments={"skill_name": "x"}, workspace=workspace)
        rules = CallRules(analyzer=RuleAnalyzer(), policy=ConfirmRisky(), allow_list=AllowList.of("*"))
        guard = Guard(rules, conversation_id="c", workspace=workspace)
        await compare_async(
            "guard, review of a command line, against a bare parse",
            lambda: review_often(guard, command),
            parse_often,
            unit="us",
            per=REVIEWS,
        )
        await compare_async(
            "guard, review of a command line, against a parse and a look at each part",
            lambda: review_often(guard, command),
            lambda: inspect_often(workspace),
            unit="us",
            per=REVIEWS,
        )
        await compare_async(
            "guard, review of another tool", lambda: review_often(guard, skill), parse_often, unit="us", per=REVIEWS
        )
        hooks = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, command="true"),))
        guard_with_hook = Guard(CallRules(hooks=hooks), conversation_id="c", workspace=workspace)
        await compare_async(
            "guard, one hook", lambda: run_hook_often(guard_with_hook, skill), start_shell_often, unit="ms", per=HOOKS
        )
    masker = Masker({f"S{number}": [f"secret-value-{number:04d}"] for number in range(20)})
    text = "an ordinary line of output, without anything to hide\n" * 20_000
    compare("guard, masking 1 MB, 20 secrets", lambda: masker.text(text), lambda: text.replace("secret-value", ""))
    choices = random.Random(1).choices
    keys = Masker({f"S{number}": ["".join(choices(string.ascii_letters, k=40))] for number in range(20)})
    compare("guard, masking 1 MB, 20 keys", lambda: keys.text(text), lambda: text.replace("secret-value", ""))


async def review_often(guard: Guard, call: ToolRequest) -> None:
    for _ in range(REVIEWS):
        await guard.review(call)


async def parse_often() -> None:
    for _ in range(REVIEWS):
        Parser(Language(tree_sitter_bash.language())).parse(COMMAND.encode())


async def inspect_often(workspace: Path) -> None:
    parser = Parser(Language(tree_sitter_bash.language()))
    for _ in range(REVIEWS):
        await asyncio.to_thread(inspect, parser, workspace)


def inspect(parser: Parser, workspace: Path) -> None:
    """Visit every node of the tree, and resolve each word as if it were a path."""
    stack = [parser.parse(COMMAND.encode()).root_node]
    while stack:
        node = stack.pop()
        stack += node.children
        if node.type == "word":
            (workspace / (node.text or b"").decode()).resolve()


async def run_hook_often(guard: Guard, call: ToolRequest) -> None:
    for _ in range(HOOKS):
        await guard.review(call)


async def start_shell_often() -> None:
    for _ in range(HOOKS):
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "true")
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
