"""An agent from data: a file's mapping, a request's body. Data only, no code."""

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
"""What data may say of an agent."""


def spec_from_data(values: Mapping[str, Any], *, base: Path, where: str, allowed: Collection[str] = KEYS) -> AgentSpec:
    """Return the agent that a mapping describes.

    Args:
        base: Relative paths in it count from this folder.
        where: What the mapping is called in messages.
        allowed: The keys that it may have.

    Raises:
        InvalidInput: A key is unknown, or a value does not fit.
    """
    from pydantic import ValidationError

    from bough.agents.spec import AgentSpec

    unknown = [key for key in values if key not in allowed]
    if unknown:
        near = get_close_matches(unknown[0], allowed, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(allowed)}"
        names = ", ".join(unknown)
        raise InvalidInput(f"{where}: unknown keys: {names if len(names) <= 60 else names[:59] + '…'}", hint=hint)
    try:
        return AgentSpec.model_validate(_place_paths(values, base))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the agent"
        raise InvalidInput(f"{where}: {field}: {first['msg']}", hint="fix this value") from error


def _place_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values with paths that count from `folder`."""
    placed = dict(values)
    if isinstance(path := placed.get("system_prompt_path"), str):
        placed["system_prompt_path"] = folder / path
    if isinstance(roots := placed.get("skill_roots"), list):
        placed["skill_roots"] = [folder / str(root) for root in cast("list[Any]", roots)]
    return placed
