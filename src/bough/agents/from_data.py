"""Building an agent from data, such as a file's mapping or a request's body, without code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec

KEYS = (
    "name", "description", "model", "base_url", "system_prompt", "system_prompt_path", "skill_roots",
    "discover_skills", "workspace_access", "catalog_tokens",
)  # fmt: skip
"""The keys that data may contain."""


def spec_from_data(values: Mapping[str, Any], *, base: Path, where: str, allowed: Collection[str] = KEYS) -> AgentSpec:
    """Return the agent that a mapping describes.

    Args:
        base: The folder to which relative paths refer.
        where: Name of the mapping in error messages.
        allowed: The allowed keys.

    Raises:
        InvalidInput: A key is unknown, or a value is invalid.
    """
    from bough.agents.spec import AgentSpec

    unknown = [key for key in values if key not in allowed]
    if unknown:
        near = get_close_matches(unknown[0], allowed, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(allowed)}"
        names = ", ".join(unknown)
        raise InvalidInput(f"{where}: unknown keys: {names if len(names) <= 60 else names[:59] + '…'}", hint=hint)
    try:
        return AgentSpec.model_validate(_place_paths(values, base))
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error.message.removeprefix('AgentSpec.')}", hint=error.hint) from error


def _place_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values with paths resolved against `folder`."""
    placed = dict(values)
    if isinstance(path := placed.get("system_prompt_path"), str):
        placed["system_prompt_path"] = folder / path
    if isinstance(roots := placed.get("skill_roots"), list):
        placed["skill_roots"] = [folder / str(root) for root in cast("list[Any]", roots)]
    return placed
