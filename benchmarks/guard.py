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
            lambda: reviews(guard, command),
            parses,
            unit="us",
            per=REVIEWS,
        )
        await compare_async(
            "guard, review of a command line, against a parse and a look at each part",
            lambda: reviews(guard, command),
            lambda: looks(workspace),
            unit="us",
            per=REVIEWS,
        )
        await compare_async(
            "guard, review of another tool", lambda: reviews(guard, skill), parses, unit="us", per=REVIEWS
        )
        hook = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, command="true"),))
        hooked = Guard(CallRules(hooks=hook), conversation_id="c", workspace=workspace)
        await compare_async("guard, one hook", lambda: asks(hooked, skill), shells, unit="ms", per=HOOKS)
    masker = Masker({f"S{number}": [f"secret-value-{number:04d}"] for number in range(20)})
    text = "an ordinary line of output, without anything to hide\n" * 20_000
    compare("guard, masking 1 MB, 20 secrets", lambda: masker.text(text), lambda: text.replace("secret-value", ""))
    choices = random.Random(1).choices
    keys = Masker({f"S{number}": ["".join(choices(string.ascii_letters, k=40))] for number in range(20)})
    compare("guard, masking 1 MB, 20 keys", lambda: keys.text(text), lambda: text.replace("secret-value", ""))


async def reviews(guard: Guard, call: ToolRequest) -> None:
    for _ in range(REVIEWS):
        await guard.review(call)


async def parses() -> None:
    for _ in range(REVIEWS):
        Parser(Language(tree_sitter_bash.language())).parse(COMMAND.encode())


async def looks(workspace: Path) -> None:
    parser = Parser(Language(tree_sitter_bash.language()))
    for _ in range(REVIEWS):
        await asyncio.to_thread(look, parser, workspace)


def look(parser: Parser, workspace: Path) -> None:
    """Read every word, and resolve those that may be paths."""
    stack = [parser.parse(COMMAND.encode()).root_node]
    while stack:
        node = stack.pop()
        stack += node.children
        if node.type == "word":
            (workspace / (node.text or b"").decode()).resolve()


async def asks(guard: Guard, call: ToolRequest) -> None:
    for _ in range(HOOKS):
        await guard.review(call)


async def shells() -> None:
    for _ in range(HOOKS):
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "true")
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
