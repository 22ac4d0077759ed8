"""A library of skills to measure catalogue and search with, and requests for them in other words.

The corpus is generated, not collected: each skill is one of many actions on one of many things, described by some of
the words for both. A request takes its words from all of them, including those that the description does not use. It is
easier than real requests, because every skill is about one thing. It is harder, because hundreds of skills differ by a
single word. About real libraries it only shows that search and catalogue work.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ACTIONS = (
    "summarize condense shorten", "translate localize render", "validate verify check", "convert transform turn",
    "merge combine join", "split divide separate", "compare diff contrast", "format tidy beautify",
    "extract pull harvest", "generate create produce", "review audit inspect", "refactor restructure clean",
    "deploy release ship", "monitor watch track", "backup archive save", "encrypt protect secure",
    "compress shrink pack", "index catalogue list", "visualize plot chart", "estimate forecast predict",
    "schedule plan arrange", "classify label sort", "anonymize mask redact", "debug troubleshoot diagnose",
    "benchmark measure profile", "migrate move port", "annotate comment mark", "crawl scrape collect",
    "simulate model emulate", "transcribe dictate record", "proofread correct spellcheck", "publish post share",
)  # fmt: skip
THINGS = (
    "invoices bills receipts", "contracts agreements leases", "spreadsheets workbooks xlsx", "photos pictures images",
    "podcasts episodes audio", "videos clips footage", "emails messages inbox", "calendars appointments meetings",
    "databases tables sql", "kubernetes clusters pods", "docker containers dockerfiles", "terraform servers modules",
    "resumes applicants candidates", "newsletters campaigns subscribers", "recipes meals ingredients",
    "maps coordinates geodata", "genomes sequences dna", "molecules compounds chemistry", "patents inventions claims",
    "lawsuits rulings court", "tweets threads social", "wikis articles knowledge", "slides presentations decks",
    "logs traces telemetry", "tickets issues bugs", "commits branches repository", "forms surveys questionnaires",
    "ledgers accounting bookkeeping", "taxes returns deductions", "inventory warehouse stock", "payroll salaries wages",
    "fonts typography glyphs", "palettes colors themes", "translations strings locales", "tests coverage assertions",
)  # fmt: skip
PLACES = ("for small teams", "in the terminal", "in a monthly report", "before a release", "with a fixed template")
LONG = ("Please {0} the {1}. It is about {2} that somebody has to {3}.", "We have {2} to {3}; can you {0} these {1}?")
SHORT = ("Could you {} my {} please?", "I need to {} these {}", "help me {} the {} of yesterday", "{} all {} in here")


@dataclass(frozen=True)
class CorpusSkill:
    """A skill, and the words for requests for it."""

    name: str
    description: str
    actions: tuple[str, ...]
    things: tuple[str, ...]


def make_corpus(count: int, *, seed: int = 20) -> list[CorpusSkill]:
    """Return `count` skills, the same for the same seed; beyond 1,120 they repeat with other numbers."""
    rng = random.Random(seed)
    pairs = [(action.split(), thing.split()) for action in ACTIONS for thing in THINGS]
    rng.shuffle(pairs)
    skills: list[CorpusSkill] = []
    for number in range(count):
        actions, things = pairs[number % len(pairs)]
        verbs, nouns = rng.sample(actions, 2), rng.sample(things, 2)
        suffix = f"-{number // len(pairs)}" if number >= len(pairs) else ""
        text = (
            f"{verbs[0].capitalize()} {nouns[0]} {rng.choice(PLACES)}. Use when the user wants to {verbs[1]} "
            f"{nouns[1]}, or asks how it is done. Reads what is there, works in steps and says what it did. "
            + "It asks before anything is changed. "
            * rng.randint(0, 12)
        )
        skills.append(CorpusSkill(f"{verbs[0]}-{nouns[0]}{suffix}", text, tuple(actions), tuple(things)))
    return skills


def make_requests(
    corpus: list[CorpusSkill], count: int, *, is_long: bool = True, seed: int = 21
) -> list[tuple[str, str]]:
    """Return `count` requests, each with the name of the skill it is for.

    Args:
        is_long: Two sentences, with two words for the action and two for the thing, as a message to an agent has them;
            else one word for each, and one request in nine shares no word with its skill at all.
    """
    rng = random.Random(seed)
    skills: list[tuple[str, str]] = []
    for skill in rng.sample(corpus, count):
        (action, other_action), (thing, other_thing) = rng.sample(skill.actions, 2), rng.sample(skill.things, 2)
        text = rng.choice(LONG).format(action, thing, other_thing, other_action) if is_long else ""
        skills.append((text or rng.choice(SHORT).format(action, thing), skill.name))
    return skills
