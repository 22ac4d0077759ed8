"""Ask the coordinator of `config.yaml` two questions; each goes to the agent that fits.

python examples/three_agents/run.py [QUESTION]...
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bough import AgentSpec, OrchestratorAgent

HERE = Path(__file__).parent
QUESTIONS = ("Profile the table sales.csv", "Count the words of notes/ideas.md")


async def main(questions: list[str]) -> None:
    """Run a turn for each question, in one conversation."""
    spec = AgentSpec.from_config("coordinator", config_path=HERE / "config.yaml")
    async with OrchestratorAgent(spec, store="memory:", workspace=HERE.parent / "workspace") as orchestrator:
        for question in questions:
            result = await orchestrator.run(question)
            print(f"> {question}\n{result.output}\n")
        print(f"requests: {orchestrator.conversation.state.own.requests} own")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(QUESTIONS)))
