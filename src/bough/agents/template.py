"""Placing catalogues in a system prompt: `{sub_agents_catalog}` and `{skills_catalog}`; other braces are plain text.

Source: seed 004 (`system_prompt`, a template with these two variables).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLACEHOLDER = re.compile(r"\{(sub_agents|skills)_catalog\}")
_MAX_DESCRIPTION_CHARS = 1024

SUB_AGENTS_HEADING = "# Agents you can delegate to"
"""Heading of the sub-agents if the prompt has no placeholder for them."""


def render_prompt(prompt: str, *, sub_agents: str, skills: str) -> str:
    """Return the prompt with both catalogues. O(text).

    A catalogue without a placeholder is appended to the prompt, the sub-agents below `SUB_AGENTS_HEADING`. An empty
    catalogue adds nothing.
    """
    catalogs = {"sub_agents": sub_agents, "skills": skills}
    placed: set[str] = set()

    def fill(found: re.Match[str]) -> str:
        placed.add(found[1])
        return catalogs[found[1]]

    text = _PLACEHOLDER.sub(fill, prompt)  # in one pass, so that braces in a catalogue are not replaced
    behind = [f"{SUB_AGENTS_HEADING}\n{sub_agents}"] if sub_agents and "sub_agents" not in placed else []
    behind += [skills] if skills and "skills" not in placed else []
    return "\n\n".join(filter(None, (text, *behind)))


def has_place_for_skills(prompt: str) -> bool:
    """Whether the prompt has a placeholder for the skills."""
    return "{skills_catalog}" in prompt


def render_sub_agents(agents: Iterable[tuple[str, str]]) -> str:
    """Return one line `- name: description` per agent, in the given order; empty without agents."""
    return "\n".join(f"- {name}: {_shorten(description)}" for name, description in agents)


def _shorten(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= _MAX_DESCRIPTION_CHARS else f"{line[: _MAX_DESCRIPTION_CHARS - 1]}…"
