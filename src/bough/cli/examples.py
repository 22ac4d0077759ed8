"""Examples of each command, shown at the end of its help."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

_MIN_WIDTH, _MAX_WIDTH = 40, 100

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "demo": ("bough demo", "bough demo /tmp/bough-demo"),
    "init": ("bough init", "bough init my-project"),
    "run": (
        'bough run "profile sales.csv"',
        'git diff | bough run "review this change"',
        "bough run -f prompt.txt -m openai:gpt-5 --max-cost-usd 0.50",
        'bough run "make the tests pass" --until "make test"',
    ),
    "chat": ("bough chat", "bough chat -  # the latest conversation"),
    "resume": ("bough resume", 'bough resume - "now the same for prices.csv"'),
    "fork": ('bough fork - "try it another way"', 'bough fork -@5 -m openai:gpt-5 "from its fifth event on"'),
    "approve": ("bough approve", "bough approve 9dd70d6c --call call_1"),
    "reject": ("bough reject", 'bough reject - --reason "not on this branch"'),
    "answer": ('bough answer "the second one"', 'bough answer 9dd70d6c \'{"colour": "red"}\''),
    "replay": ("bough replay -", "bough replay - --until 12"),
    "try": (
        'bough try "fix the test" "fix it, briefly" --check "sh check.sh"',
        "bough try --variant variants.yaml --repeat 5",
        "bough try --variant variants.yaml --repeat 5 --resume",
    ),
    "bisect": ('bough bisect - --check "sh check.sh"', "bough bisect 9dd70d6c@40 --check 'make test' --good 12"),
    "conv list": ("bough conv list", "bough conv list --all", "bough conv list --status error --tag customer=acme"),
    "conv show": ("bough conv show -", "bough conv show 9dd70d6c --full", "bough conv show 9dd70d6c@12 --files"),
    "conv turns": ("bough conv turns -", "bough conv turns 9dd70d6c@40"),
    "conv tree": ("bough conv tree", "bough conv tree 9dd70d6c"),
    "conv tail": ("bough conv tail -n 20", "bough conv tail 9dd70d6c --follow"),
    "conv diff": (
        "bough conv diff -  # with its source",
        "bough conv diff 9dd70d6c 04cd3f11",
        "bough conv diff - --files",
    ),
    "conv search": ("bough conv search invoice", "bough conv search '\"broken link\" -draft' --since 7d"),
    "conv export": ("bough conv export - -o talk.md", "bough conv export 9dd70d6c -o talk.bough"),
    "conv import": ("bough conv import talk.bough", "bough conv import talk.bough --accept-unknown"),
    "conv adopt": ("bough conv adopt 9dd70d6c", "bough conv adopt 9dd70d6c --policy ask"),
    "conv tag": ("bough conv tag - customer=acme", "bough conv tag 9dd70d6c customer-"),
    "conv restore": ("bough conv restore 9dd70d6c@12 --dry-run", "bough conv restore 9dd70d6c@12 src/app.py"),
    "conv apply": ("bough conv apply 04cd3f11", "bough conv apply 04cd3f11 --to 9dd70d6c --dry-run"),
    "conv collect": ("bough conv collect --dry-run", "bough conv collect"),
    "conv delete": ("bough conv delete 9dd70d6c --dry-run", "bough conv delete 9dd70d6c --mode erase"),
    "skills list": ("bough skills", "bough skills --skills ../skills"),
    "skills show": ("bough skills show csv-profile",),
    "skills check": ("bough skills check .agents/skills/csv-profile", "bough skills check -r .agents/skills --strict"),
    "skills match": ('bough skills match "how long is README.md"',),
    "skills run": ("bough skills run word-count count.sh README.md",),
    "skills new": ('bough skills new csv-profile --script -d "Profiles a table."',),
    "skills lock": ("bough skills lock", "bough skills lock --verify"),
    "skills add": ("bough skills add ../skills/csv-profile", "bough skills add owner/name --ref v1.2"),
    "skills update": ("bough skills update --dry-run", "bough skills update csv-profile"),
    "skills remove": ("bough skills remove csv-profile",),
    "skills disable": ("bough skills disable csv-profile",),
    "skills enable": ("bough skills enable csv-profile",),
    "skills trust": ("bough skills trust --dry-run", "bough skills trust"),
    "agents list": ("bough agents",),
    "agents show": ("bough agents show coordinator",),
    "agents check": ("bough agents check", "bough agents check coordinator"),
    "agents schema": ("bough agents schema > config.schema.json",),
    "tasks list": ("bough tasks", "bough tasks --state failed"),
    "tasks show": ("bough tasks show -",),
    "tasks logs": ("bough tasks logs -", "bough tasks logs 9dd70d6c --follow"),
    "tasks wait": ("bough tasks wait 9dd70d6c --timeout 60", "bough tasks wait 9dd70d6c --run"),
    "tasks cancel": ("bough tasks cancel 9dd70d6c", "bough tasks cancel --all"),
    "tasks retry": ("bough tasks retry -",),
    "tasks input": ('bough tasks input - "the second one"', "bough tasks input - --approve call_1"),
    "budgets list": ("bough budgets",),
    "budgets show": ("bough budgets show june",),
    "budgets change": ("bough budgets change june --usd 10",),
    "worker": ("bough worker", "bough worker --once"),
    "web": ("bough web", "bough web - --no-open"),
    "serve": ("bough serve", "bough serve --port 9000"),
    "mcp": ("bough mcp", "bough mcp --agent coordinator"),
    "acp": ("bough acp", "bough acp --agent coordinator"),
    "a2a serve": ("bough a2a serve --agent agent.yaml",),
    "keys create": ("bough keys create laptop", "bough keys create ci --role read --expires 90d"),
    "keys list": ("bough keys",),
    "keys revoke": ("bough keys revoke 9dd70d6c",),
    "keys rotate": ("bough keys rotate 9dd70d6c --grace 1h",),
    "tenants list": ("bough tenants",),
    "tenants disable": ("bough tenants disable acme",),
    "tenants enable": ("bough tenants enable acme",),
    "schema": (
        "bough schema conv list",
        "bough schema agent > agent.schema.json",
        "bough conv list --json | bough schema --validate -",
    ),
    "doctor": ("bough doctor", "bough doctor --json"),
    "exec": ("bough exec script.py", 'bough exec -c "print(6 * 7)"', "bough exec fetch.py --network example.com"),
    "eval list": ("bough eval",),
    "eval show": ("bough eval show", "bough eval show - greets"),
    "eval run": ("bough eval run cases.json", "bough eval run cases.yaml --repeat 3 --threshold 0.8"),
    "eval skill": ("bough eval skill .agents/skills/csv-profile",),
    "eval data": ("bough eval data --project sales=sales.duckdb cases.json",),
    "eval harbor": ("bough eval harbor tasks --dry-run", "bough eval harbor tasks --agent oracle"),
    "eval add": ("bough eval add - cases.yaml",),
    "eval judge": ("bough eval judge labels.jsonl --judge openai:gpt-5",),
    "eval score": ("bough eval score - --judge openai:gpt-5",),
    "eval compare": ("bough eval compare 3f2a", "bough eval compare 3f2a 9c01"),
    "eval report": ("bough eval report - --format md", "bough eval report - --format html -o report.html"),
}
"""The examples by command. A test parses each of them."""


def measure_help_width() -> int:
    """Return the width of help: the terminal's, within what can be read."""
    return max(_MIN_WIDTH, min(shutil.get_terminal_size().columns, _MAX_WIDTH))


def format_examples(command: str) -> str | None:
    """Return the examples of a command as the end of its help; None without examples."""
    examples = EXAMPLES.get(command)
    # \b is Click's mark of a paragraph whose lines are not joined.
    return "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples) if examples else None
