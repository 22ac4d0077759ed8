"""The agent of a run: from a file, from config.yaml, or the default agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec


def resolve_agent(
    file: Path | None, settings: Settings, *, skill_roots: tuple[Path, ...] = (), settle_model: bool = True
) -> AgentSpec:
    """Return the agent of a file, an agent of config.yaml by name, or the default agent, with its model resolved.

    The default agent may read and write files in its workspace and run commands there in the sandbox. The offline
    planner gets none of these tools.

    Args:
        skill_roots: Folders whose skills have precedence. They are recorded with the agent for other processes.
        settle_model: If False, the process that runs the agent chooses the model, unless the settings name one.

    Raises:
        InvalidInput: The file or the model's name is invalid.
        Unavailable: The model's key or package is missing.
    """
    from bough.agents.spec import AgentSpec
    from bough.conversation.agent import settle_spec

    if file is not None:
        spec = _load_named(file, settings) or load_agent(file, model=settings.model, base_url=settings.base_url)
        return spec.model_copy(update={"skill_roots": (*skill_roots, *spec.skill_roots)})
    spec = AgentSpec(skill_roots=skill_roots, discover_skills=True)
    if settle_model or settings.model is not None:
        spec = settle_spec(spec, settings)
    return spec.model_copy(update={"workspace_access": "none" if spec.model == "offline" else "run"})


def may_write(spec: AgentSpec) -> bool:
    """Return whether the agent has tools that can change something."""
    return spec.workspace_access in ("write", "run") or bool(spec.tools or spec.mcp_servers or spec.toolsets)


def _load_named(name: Path, settings: Settings) -> AgentSpec | None:
    """Return the agent with this name in config.yaml; None if there is none, or if a file has this name."""
    from bough.agents.config.agents import UNSET, AgentConfig
    from bough.agents.spec import AgentSpec

    # A file has precedence over an agent with the same name, because the user can see the file in the folder.
    if name.exists() or name.suffix in (".yaml", ".yml", ".json") or len(name.parts) != 1:
        return None
    if str(name) not in AgentConfig.load(settings=settings).names:
        return None
    return AgentSpec.from_config(str(name), UNSET if settings.model is None else settings.model, settings=settings)


def load_agent(file: Path, *, model: str | None = None, base_url: str | None = None) -> AgentSpec:
    """Return the agent that a YAML or JSON file describes. Paths in it are relative to its folder.

    Args:
        model: Replaces the model of the file.

    Raises:
        InvalidInput: The file cannot be read, is not a mapping, or has an unknown key or an invalid value.
    """
    from bough.agents.spec import spec_from_data

    values = {"name": file.stem, "discover_skills": True} | _read(file)
    values |= {key: value for key, value in (("model", model), ("base_url", base_url)) if value is not None}
    return spec_from_data(values, base=file.absolute().parent, subject=str(file))


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(file.read_text("utf-8"))
    # PyYAML is recursive, so a deeply nested file raises RecursionError.
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"the agent {file} cannot be read: {error}", hint="give a YAML or JSON file") from error
    if not isinstance(data, dict):
        raise InvalidInput(f"the agent {file} has no `key: value` lines", hint="for example model: openai:gpt-5")
    return {str(key): value for key, value in cast("dict[Any, Any]", data).items()}
