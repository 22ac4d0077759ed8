"""Finding many skills cold and warm, matching messages against their triggers, the catalogue, and the memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from ahocorasick_rs import AhoCorasick

from bough.skills.find.catalog import estimate_tokens, render_catalog
from bough.skills.find.discover import Root, discover
from bough.skills.find.index import SkillIndex
from bough.skills.match.triggers import TriggerIndex, TriggerMatch, fold
from bough.skills.model import KeywordTrigger, SkillMetadata
from harness import Figure, compare, print_note
from skill_corpus import make_corpus, make_requests

if TYPE_CHECKING:
    from bough.agents.skills.tools import SkillToolset
    from bough.skills import SkillRegistry

BUDGET_TOKENS = 2_000
RECALL = 0.95
RECALL_COUNT = 1_000
"""The recall must reach `RECALL` up to this number of skills. In larger corpora some differ only by a number."""

WORDS = [
    "extract",
    "merge",
    "report",
    "table",
    "chart",
    "deploy",
    "review",
    "audit",
    "parse",
    "convert",
    "render",
    "query",
    "index",
    "cluster",
    "schedule",
    "invoice",
    "email",
    "ticket",
    "branch",
    "commit",
    "release",
    "notes",
    "schema",
    "migrate",
    "backup",
    "restore",
    "monitor",
    "alert",
    "dashboard",
    "metric",
    "token",
    "budget",
]


def write_library(root: Path, count: int) -> None:
    """Write `count` skill folders in the proportions of real ones: most plain, some folded, nested, broken or bare."""
    rng = random.Random(7)
    for number in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randint(12, 45))]
        name = f"{words[0]}-{words[1]}-{number}"
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(_make_text(name, " ".join(words), rng.random(), rng))


def _make_text(name: str, words: str, kind: float, rng: random.Random) -> str:
    body = "\n".join(f"## Step {i}\n\n{words}.\n" for i in range(rng.randint(4, 24)))
    description = f"description: {words.capitalize()}. Use when the user asks to {words[:60]}."
    if kind < 0.05:
        return f"# {name}\n\n{words}\n\n{body}"
    if kind < 0.09:
        description = f"description: {words.capitalize()}: use when: {words[:40]}"
    elif kind < 0.20:
        description = f"description: >\n  {words[:80]}\n  {words[80:]}"
    elif kind < 0.30:
        description = f'description: "{words.capitalize()}: use when asked"'
    extra = "license: MIT\nmetadata:\n  author: someone\n  version: 1.0.0\n" if kind > 0.7 else ""
    shown = f"{name}x" if 0.5 < kind < 0.7 else name
    return f"---\nname: {shown}\n{description}\n{extra}---\n{body}"


def discover_bare(root: Path) -> int:
    """Do what every loader must do: list the folders, read 8 KB of each file, and parse the frontmatter."""
    count = 0
    with os.scandir(root) as entries:
        for entry in entries:
            with open(os.path.join(entry.path, "SKILL.md"), "rb") as file:
                parts = file.read(8192).split(b"---", 2)
            try:
                count += isinstance(yaml.load(parts[1], Loader=yaml.CSafeLoader), dict) if len(parts) > 2 else 0
            except yaml.YAMLError:
                continue
    return count


def check_files_bare(root: Path, file: Path) -> list[SkillMetadata]:
    """Read an index and check each file for changes, as every discovery with an index must do."""
    _, *lines = file.read_text(encoding="utf-8").split("\n")
    known = dict(zip(lines[::5], zip(lines[1::5], lines[2::5], lines[3::5], strict=True), strict=True))
    found: list[SkillMetadata] = []
    with os.scandir(root) as entries:
        for entry in entries:
            path = f"{entry.path}/SKILL.md"
            info = os.stat(path)
            stamp, name, description = known[path]
            if stamp == f"{info.st_mtime_ns} {info.st_size} {info.st_ino}":
                found.append(SkillMetadata(name, description, path))
    return found


def measure_discovery(folder: Path, count: int) -> None:
    """Print the figures of one library."""
    root = folder / f"library-{count}"
    write_library(root, count)
    found = discover(Root(root))
    if len(found.skills) != count:
        raise AssertionError(f"{len(found.skills)} of {count} skills were loaded")
    compare(f"skills: discover {count}, cold index", lambda: discover(Root(root)), lambda: discover_bare(root))
    file = folder / "index"

    def warm() -> int:
        index = SkillIndex(file)
        discover(Root(root), index)
        index.save()
        return index.hits

    warm()
    if warm() != count:
        raise AssertionError("the index did not know every file")
    compare(f"skills: discover {count}, warm index", warm, lambda: discover_bare(root))
    compare(
        f"skills: discover {count}, warm index, against a look at each file", warm, lambda: check_files_bare(root, file)
    )
    file.unlink()


def measure_matching() -> None:
    """Print the figures of trigger matching: 1,000 skills with three keywords each, none or some in the message."""
    skills = [
        SkillMetadata(
            f"skill-{i}",
            "x",
            Path(f"/s/{i}/SKILL.md"),
            trigger=KeywordTrigger((f"word{i}", f"two words {i}", f"käse{i}")),
        )
        for i in range(1000)
    ]
    words = [word for skill in skills for word in skill.trigger.keywords]  # pyright: ignore
    automaton = AhoCorasick([fold(word) for word in words], store_patterns=False)
    index = TriggerIndex(skills)
    filler = " ".join(WORDS * 40)
    messages = {
        "short message": "please extract word17 and make a chart",
        "short message without a keyword": "please extract a word and make a chart",
        "10,000 characters": f"{filler[:5000]} Word500 {filler[:4980]} word999"[:10_000],
    }

    def search_bare(message: str) -> list[tuple[int, int, int]]:
        return automaton.find_matches_as_indexes(message.lower(), overlapping=True)

    def match_bare(message: str) -> list[TriggerMatch]:
        """Do what every matcher must do after the search: test each hit at both ends, and return its text."""
        return [
            TriggerMatch(names[which], "keyword", message[start:end])
            for which, start, end in search_bare(message)
            if not message[start - 1 : start].isalnum() and not message[end : end + 1].isalnum()
        ]

    names = [skill.name for skill in skills for _ in range(3)]
    for label, message in messages.items():
        for suffix, floor in ("", search_bare), (", against a pass whose hits are told", match_bare):
            compare(
                f"skills: match 1,000 skills, {label}{suffix}",
                _repeat(lambda message=message: index.match(message)),
                _repeat(lambda message=message, floor=floor: floor(message)),
                unit="us",
                per=200,
            )
    small_index = TriggerIndex(skills[490:510])
    text = messages["10,000 characters"]
    few, many = _repeat(lambda: small_index.match(text)), _repeat(lambda: index.match(text))
    compare("skills: match 1,000 skills against 20", many, few, unit="us", per=200)


def _repeat(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(200):
            work()

    return run


def measure_catalogue(folder: Path) -> None:
    """Print the cost of a catalogue of 1,000 skills, and check that it is within its budget."""
    skills = discover(Root(folder / "library-1000")).skills
    for budget in (2_000, 200_000):
        catalog = render_catalog(skills, budget_tokens=budget)
        if estimate_tokens(catalog.text) > budget:
            raise AssertionError("the catalogue is over its budget")
    compare(
        "skills: catalogue of 1,000",
        lambda: render_catalog(skills, budget_tokens=200_000),
        lambda: json.dumps([(skill.name, skill.description) for skill in skills]),
    )


def measure_catalogue_and_recall() -> None:
    """Print the catalogue size of 4, 40, 1,000 and 10,000 skills, and how often it or a search has the right one."""
    from bough.agents.skills.tools import SkillToolset
    from bough.skills import Skill, SkillRegistry

    for count in (4, 40, 1_000, 10_000):
        corpus = make_corpus(count)
        registry = SkillRegistry()
        for skill in corpus:
            text = skill.description
            registry.add(Skill(name=skill.name, description=text, content="x", trigger=KeywordTrigger(())))
        began = time.perf_counter()
        toolset = SkillToolset(registry)
        seconds = time.perf_counter() - began
        tools = toolset.toolset().tools.values()
        schemas = "".join(json.dumps([t.name, t.description, t.function_schema.json_schema]) for t in tools)
        whole = toolset.catalog.text + schemas
        if estimate_tokens(whole) > BUDGET_TOKENS:
            raise AssertionError(f"{count} skills: {estimate_tokens(whole)} tokens are over the budget")
        asked = {
            is_long: make_requests(corpus, min(200 if count <= RECALL_COUNT else 20, count), is_long=is_long)
            for is_long in (True, False)
        }
        recall, short = (_measure_recall(toolset, registry, requests) for requests in asked.values())
        print_note(
            f"{count} skills: {len(whole)} characters, {estimate_tokens(whole)} tokens (catalogue "
            f"{estimate_tokens(toolset.catalog.text)}, schemas {estimate_tokens(schemas)}), "
            f"{len(toolset.catalog.shown)} shown, {len(registry) - len(toolset.catalog.shown)} more, "
            f"{seconds * 1e3:.0f} ms, recall of a made corpus {recall:.1%} (requests of two sentences), "
            f"{short:.1%} (of a verb and a noun)"
        )

        if count <= RECALL_COUNT and min(recall, short) < RECALL:
            raise AssertionError(f"{count} skills: recall {recall:.1%} and {short:.1%}")


def _measure_recall(toolset: SkillToolset, registry: SkillRegistry, requests: list[tuple[str, str]]) -> float:
    """Return the share of requests whose skill a model sees, or finds with one search by the request itself."""
    return sum(_is_reached(toolset, registry, request, name) for request, name in requests) / len(requests)


def _is_reached(toolset: SkillToolset, registry: SkillRegistry, request: str, name: str) -> bool:
    """Return whether a skill is in the catalogue for a request, or among the first ten hits of a search by it."""
    return name in toolset.rank_catalog(request).shown or name in [hit.name for hit in registry.search(request, 10)]


MEMORY = """
import gc, sys
from pathlib import Path
from bough.skills.registry import SkillRegistry
import bough.skills.read.yaml_text, sqlite3
def resident():
    gc.collect()
    return int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6
before = resident()
registry = SkillRegistry(index=Path(sys.argv[2]))
registry.discover([Path(sys.argv[1])])
print(resident() - before)
"""


def measure_memory(folder: Path, count: int) -> None:
    """Print by how much a process grows with a registry of `count` skills, the index included."""
    root = folder / f"library-{count}"
    command = [sys.executable, "-c", MEMORY, str(root), str(folder / "cache")]
    grown = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(5)]
    Figure.of(f"skills: resident memory of {count}", grown, unit="MB").report()


def main() -> None:
    """Print the figures."""
    measure_catalogue_and_recall()
    folder = Path(tempfile.mkdtemp(prefix="bough-skills-"))
    try:
        for count in (1_000, 10_000):
            print_note(f"writing {count} skills")
            measure_discovery(folder, count)
        measure_matching()
        measure_catalogue(folder)
        measure_memory(folder, 10_000)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
