"""What the model answers while the peer's client drives the server."""

from __future__ import annotations

from bough.testing import Answer, ServerCall
from bough.testing.openai_server import Step


def model_steps() -> list[Step]:
    """Return the answers in order: a greeting, a call to approve, one to reject, a fork, a question, a reconnection."""

    def call(command: str, id: str) -> Answer:
        return Answer(calls=(ServerCall(tool="run_command", arguments={"command": command}, id=id),))

    return [
        "hello to you",
        call("echo made > made.txt", "c1"),
        "made it",
        call("echo no > no.txt", "c2"),
        "as you say",
        "from the fork",
        "an answer aside",
        "still here",
    ]
