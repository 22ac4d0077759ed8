"""A program that uses `openhands-sdk` 1.58 with a server, a model key of its own and no base URL; prints what it got.

Arguments: address of the server, its key, the model key, the working folder.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

from openhands.sdk import LLM, Agent, Conversation, RemoteWorkspace
from pydantic import SecretStr


def main(host: str, key: str, model_key: str, folder: str) -> dict[str, object]:
    """Ask one question, and return the answer."""
    workspace = RemoteWorkspace(host=host, api_key=key, working_dir=folder)
    agent = Agent(llm=LLM(model="openai/test", api_key=SecretStr(model_key), usage_id="agent"), tools=[])
    conversation = Conversation(agent=agent, workspace=workspace, visualizer=None, delete_on_close=False)
    conversation.send_message("hello")
    conversation.run(timeout=60)
    messages = [event for event in conversation.state.events if type(event).__name__ == "MessageEvent"]
    answers = [part.text for event in messages if event.source == "agent" for part in event.llm_message.content]
    status = conversation.state.execution_status.value
    conversation.close()
    return {"version": version("openhands-sdk"), "status": status, "answers": answers}


print(json.dumps(main(*sys.argv[1:])), flush=True)
