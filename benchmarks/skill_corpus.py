"""A library of skills to measure catalogue and search with, and requests for them in other words.

It is made here, not collected: each skill is one of many actions on one of many things, described by some of the words
that people have for both. A request takes its words from all of them, those that the description does not use
included. That is kinder than real requests in that every skill is about one thing, and harder in that hundreds of
skills differ by a single word. What it says of real libraries is no more than that search and catalogue do their part.
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
    """A skill, and the words that requests for it are made of."""

    name: str
    description: str
    actions: tuple[str, ...]
    things: tuple[str, ...]


def make_corpus(count: int, *, seed: int = 20) -> list[CorpusSkill]:
    """Return `count` skills, the same for the same seed; beyond 1,120 they repeat with other numbers."""
    chance = random.Random(seed)
    pairs = [(action.split(), thing.split()) for action in ACTIONS for thing in THINGS]
    chance.shuffle(pairs)
    found: list[CorpusSkill] = []
    for number in range(count):
        actions, things = pairs[number % len(pairs)]
        told, meant = chance.sample(actions, 2), chance.sample(things, 2)
        again = f"-{number // len(pairs)}" if number >= len(pairs) else ""
        text = (
            f"{told[0].capitalize()} {meant[0]} {chance.choice(PLACES)}. Use when the user wants to {told[1]} "
            f"{meant[1]}, or asks how it is done. Reads what is there, works in steps and says what it did. "
            + "It asks before anything is changed. "
            * chance.randint(0, 12)
        )
        found.append(CorpusSkill(f"{told[0]}-{meant[0]}{again}", text, tuple(actions), tuple(things)))
    return found


def make_requests(
    corpus: list[CorpusSkill], count: int, *, is_long: bool = True, seed: int = 21
) -> list[tuple[str, str]]:
    """Return `count` requests, each with the name of the skill it is for.

    Args:
        is_long: Two sentences, with two words for the action and two for the thing, as a message to an agent has them;
            else one word for each, and one request in nine shares no word with its skill at all.
    """
    chance = random.Random(seed)
    found: list[tuple[str, str]] = []
    for skill in chance.sample(corpus, count):
        (action, more), (thing, others) = chance.sample(skill.actions, 2), chance.sample(skill.things, 2)
        text = chance.choice(LONG).format(action, thing, others, more) if is_long else ""
        found.append((text or chance.choice(SHORT).format(action, thing), skill.name))
    return found
