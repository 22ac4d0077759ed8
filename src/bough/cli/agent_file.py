"""The agent of a run: from a file, or the default one with the tools that fit its model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bough.cli.text import one_line
from bough.config import Settings
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec

KEYS = (
    "name", "description", "model", "base_url", "system_prompt", "system_prompt_path", "skill_roots",
    "discover_skills", "workspace_access", "catalog_tokens",
)  # fmt: skip
"""What a file may say: data only, no code."""


def agent_of(file: Path | None, settings: Settings, *, skill_roots: tuple[Path, ...] = ()) -> AgentSpec:
    """Return the agent of a file, or of config.yaml by name, or the default agent; its model settled.

    Skills of `skill_roots` come first. They are recorded with the agent, so that whoever goes on has them, too.

    The default agent may read, write and run commands in its workspace, the latter in the sandbox. The offline planner
    has no use for these tools.

    Raises:
        InvalidInput: The file or the model's name is not right.
        Unavailable: The model's key or package is missing.
    """
    from bough.agents.models.resolve import resolve_model
    from bough.agents.spec import AgentSpec

    if file is not None:
        spec = _load_named(file, settings) or load_agent(file, model=settings.model, base_url=settings.base_url)
        return spec.model_copy(update={"skill_roots": (*skill_roots, *spec.skill_roots)})
    name = resolve_model(settings.model, base_url=settings.base_url, env=os.environ).name
    access = "none" if name == "offline" else "run"
    return AgentSpec(
        model=name,
        base_url=settings.base_url,
        skill_roots=skill_roots,
        discover_skills=True,
        workspace_access=access,
    )


def _load_named(name: Path, settings: Settings) -> AgentSpec | None:
    """Return the agent of config.yaml that has this name; None where it is a file, or no such name."""
    from bough.agents.config.agents import UNSET, AgentConfig
    from bough.agents.spec import AgentSpec

    if name.exists() or name.suffix in (".yaml", ".yml", ".json") or len(name.parts) != 1:
        return None
    if str(name) not in AgentConfig.load(settings=settings).names:
        return None
    return AgentSpec.from_config(str(name), UNSET if settings.model is None else settings.model, settings=settings)


def load_agent(file: Path, *, model: str | None = None, base_url: str | None = None) -> AgentSpec:
    """Return the agent that a YAML or JSON file describes; paths in it count from its folder.

    Args:
        model: Used instead of the file's one.

    Raises:
        InvalidInput: It cannot be read, is no mapping, has an unknown key or a value that does not fit.
    """
    from pydantic import ValidationError

    from bough.agents.spec import AgentSpec

    values = {"name": file.stem, "discover_skills": True} | _read(file)
    values |= {key: value for key, value in (("model", model), ("base_url", base_url)) if value is not None}
    try:
        return AgentSpec.model_validate(_placed(values, file.absolute().parent))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the agent"
        raise InvalidInput(f"{file}: {where}: {first['msg']}", hint="mend that value") from error


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"the agent {file} cannot be read: {error}", hint="give a YAML or JSON file") from error
    if not isinstance(data, dict):
        raise InvalidInput(f"the agent {file} has no `key: value` lines", hint=f"known keys: {', '.join(KEYS)}")
    values = {str(key): value for key, value in cast("dict[Any, Any]", data).items()}
    unknown = [key for key in values if key not in KEYS]
    if unknown:
        near = get_close_matches(unknown[0], KEYS, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(KEYS)}"
        raise InvalidInput(f"{file}: unknown keys: {one_line(', '.join(unknown), 60)}", hint=hint)
    return values


def _placed(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values with paths that count from the file's folder."""
    placed = dict(values)
    if isinstance(path := placed.get("system_prompt_path"), str):
        placed["system_prompt_path"] = folder / path
    if isinstance(roots := placed.get("skill_roots"), list):
        placed["skill_roots"] = [folder / str(root) for root in cast("list[Any]", roots)]
    return placed
