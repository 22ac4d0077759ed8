"""The operator's agents: those of the `config.yaml` in bough's own folder."""

from __future__ import annotations

from bough.agents.config.agents import AgentConfig
from bough.agents.spec import AgentSpec
from bough.settings import Settings
from bough.tasks.agents import is_data


def load_configured(settings: Settings) -> dict[str, AgentSpec]:
    """Return the agents of the home's `config.yaml` by name; none without the file. Code that it names is imported.

    The `config.yaml` of a project is not looked for: where a server was started says nothing of what it serves.

    Raises:
        InvalidInput: The file has a mistake.
        NotFound: It refers to something that does not exist.
    """
    path = settings.home / "config.yaml"
    if not path.is_file():
        return {}
    names = AgentConfig.load(path, settings=settings).names
    return {name: AgentSpec.from_config(name, config_path=path, settings=settings) for name in names}


def list_for_workers(settings: Settings) -> list[AgentSpec]:
    """Return those of them that only a process which has them can run: their record does not say all of them.

    As a worker in this folder finds them by name: a project's `config.yaml` goes before the home's there.

    Raises: see `load_configured`.
    """
    found = [AgentSpec.from_config(name, settings=settings) for name in load_configured(settings)]
    return [spec for spec in found if not is_data(spec.snapshot())]
