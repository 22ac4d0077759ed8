"""The operator's agents: those of the `config.yaml` in bough's own folder."""

from __future__ import annotations

from bough.agents.config.agents import AgentConfig
from bough.agents.spec import AgentSpec
from bough.settings import Settings


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
