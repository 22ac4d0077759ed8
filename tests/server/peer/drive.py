"""What a user of `openhands-sdk` 1.58 does with an agent server; runs in an environment of its own, and prints facts.

Arguments: address, key, base URL of the model, working folder. It says `cut` when its connections should be cut, and
continues when it is told so; its last line is a JSON object of what it saw.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from openhands.sdk import LLM, Agent, Conversation, RemoteConversation, RemoteWorkspace, Tool
from openhands.sdk.event import Event
from openhands.sdk.security.confirmation_policy import AlwaysConfirm, NeverConfirm
from pydantic import SecretStr


def main(host: str, key: str, model_url: str, folder: str) -> dict[str, Any]:
    """Use everything that the client has, and return what came of it."""
    workspace = RemoteWorkspace(host=host, api_key=key, working_dir=folder)
    llm = LLM(model="openai/test", base_url=model_url, api_key=SecretStr("sk-of-the-client"), usage_id="agent")
    agent = Agent(llm=llm, tools=[Tool(name="terminal"), Tool(name="file_editor")])
    facts: dict[str, Any] = {"alive": workspace.alive, "sdk": workspace.get_server_info()["sdk_version"]}
    facts |= use_workspace(workspace, folder)
    heard: list[Event] = []
    talk = Conversation(
        agent=agent, workspace=workspace, callbacks=[heard.append], visualizer=None, tags={"team": "red"},
        secrets={"TOKEN": "a-secret-of-the-client"}, delete_on_close=False,
    )  # fmt: skip
    assert isinstance(talk, RemoteConversation)
    talk.send_message("hello")
    talk.run(timeout=60)
    facts["first"] = [str(talk.state.execution_status.value), answer_of(talk)]
    facts |= confirm_and_reject(talk)
    facts |= fork(talk)
    facts |= attach(talk, workspace, agent)
    facts |= change(talk)
    facts |= reconnect(talk)
    facts["kinds"] = sorted({type(event).__name__ for event in heard})
    facts["in_order"] = is_in_order(talk)
    talk.delete_on_close = True
    talk.close()
    return facts


def use_workspace(workspace: RemoteWorkspace, folder: str) -> dict[str, Any]:
    """Run commands, move files, look at a repository."""
    ran = workspace.execute_command("echo out; echo err >&2; exit 3", cwd=folder)
    slow = workspace.execute_command("sleep 30", cwd=folder, timeout=2)
    begun = workspace.start_command("sleep 60", cwd=folder)
    workspace.stop_command(begun)
    with tempfile.TemporaryDirectory() as local:
        source = Path(local, "sent.txt")
        source.write_text("sent")
        up = workspace.file_upload(source, f"{folder}/sent.txt")
        down = workspace.file_download(f"{folder}/sent.txt", Path(local, "back.txt"))
        back = Path(local, "back.txt").read_text()
        outside = workspace.file_download("/etc/hostname", Path(local, "no.txt"))
    git = "git init -q . && git add . && git -c user.name=a -c user.email=a@example.org commit -qm one"
    made = workspace.execute_command(f"{git} && echo changed > sent.txt", cwd=folder)
    changes = [[change.status.value, str(change.path)] for change in workspace.git_changes(".")]
    diff = workspace.git_diff("sent.txt")
    return {
        "command": [ran.exit_code, ran.stdout, ran.stderr],
        "timed_out": slow.exit_code,
        "files": [up.success, up.file_size, down.success, back, outside.success],
        "git": [made.exit_code, made.stderr, changes, diff.original, diff.modified],
    }


def confirm_and_reject(talk: RemoteConversation) -> dict[str, Any]:
    """Approve a call by running again, and refuse another one."""
    talk.set_confirmation_policy(AlwaysConfirm())
    talk.send_message("make a file")
    talk.run(timeout=60)
    waiting = talk.state.execution_status.value
    talk.run(timeout=60)
    confirmed = [waiting, talk.state.execution_status.value, answer_of(talk)]
    talk.send_message("make another one")
    talk.run(timeout=60)
    talk.reject_pending_actions("not this one")
    talk.run(timeout=60)
    rejected = [talk.state.execution_status.value, answer_of(talk), kinds_of(talk).count("UserRejectObservation")]
    talk.set_confirmation_policy(NeverConfirm())
    return {"confirmed": confirmed, "rejected": rejected}


def fork(talk: RemoteConversation) -> dict[str, Any]:
    """Fork at the end and at an event, and continue with the fork."""
    before = ids_of(talk)
    whole = talk.fork(title="whole", tags={"team": "blue"})
    whole.send_message("and now")
    whole.run(timeout=60)
    first = next(event for event in talk.state.events if type(event).__name__ == "MessageEvent")
    early = talk.fork(conversation_id=uuid.uuid4(), from_event_id=first.id)
    last = talk.fork(from_event_id=talk.state.events[-1].id)
    found = {
        "fork": [answer_of(whole), len(ids_of(early)) < len(before), kinds_of(early).count("MessageEvent")],
        "source": [ids_of(talk) == before, ids_of(last)[: len(before)] == before],
    }
    for made in (whole, early, last):
        made.close()
    return found


def attach(talk: RemoteConversation, workspace: RemoteWorkspace, agent: Agent) -> dict[str, Any]:
    """Open the same conversation a second and a third time."""
    again = RemoteConversation.attach(workspace, talk.id, visualizer=None)
    third = Conversation(
        agent=agent, workspace=workspace, conversation_id=talk.id, visualizer=None, delete_on_close=False
    )
    found = {"attached": [ids_of(again) == ids_of(talk), again.agent.llm.model, third.id == talk.id]}
    again.close()
    third.close()
    return found


def change(talk: RemoteConversation) -> dict[str, Any]:
    """Use what is left of the client."""
    answer = talk.ask_agent("what is this about?")
    talk.set_title("A title")
    talk.update_secrets({"OTHER": "another-secret-of-the-client"})
    talk.pause()
    talk.interrupt()
    stats = talk.conversation_stats.get_combined_metrics().accumulated_token_usage
    talk.state.refresh_from_server()
    return {
        "asked": answer,
        "prompt_tokens": 0 if stats is None else stats.prompt_tokens,
        "secrets": sorted(talk.state.secret_registry.secret_sources),
    }


def reconnect(talk: RemoteConversation) -> dict[str, Any]:
    """Lose every connection, and hear of what happened then."""
    before = len(talk.state.events)
    print("cut", flush=True)
    sys.stdin.readline()
    talk.send_message("are you there?")
    talk.run(timeout=60)
    deadline = time.monotonic() + 60
    while len(talk.state.events) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    return {"reconnected": [talk.state.execution_status.value, answer_of(talk)]}


def answer_of(talk: RemoteConversation) -> str:
    """Return the agent's last words."""
    said = [event for event in talk.state.events if type(event).__name__ == "MessageEvent" and event.source == "agent"]
    return "".join(getattr(part, "text", "") for part in said[-1].llm_message.content) if said else ""


def kinds_of(talk: RemoteConversation) -> list[str]:
    """Return the kinds of its events."""
    return [type(event).__name__ for event in talk.state.events]


def ids_of(talk: RemoteConversation) -> list[str]:
    """Return the ids of its events as the server has them, without those of frames that the client keeps as well."""
    talk.state.events.reconcile()
    return [event.id for event in talk.state.events if not event.id.endswith(".state")]


def is_in_order(talk: RemoteConversation) -> bool:
    """Whether events are there once, in the order of their times."""
    ids = ids_of(talk)
    times = [event.timestamp for event in talk.state.events]
    return len(ids) == len(set(ids)) and times == sorted(times)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
