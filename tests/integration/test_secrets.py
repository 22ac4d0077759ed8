"""A secret reaches the script that declares it, and no stored byte, log line or answer."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.guard import EnvSecret, Secrets
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio
VALUE = "hunter2-is-not-it"
SCRIPT = """\
import base64, os, sys
token = os.environ.get("SHOP_TOKEN", "")
print("token", token, base64.b64encode(token.encode()).decode())
print("others", sorted(name for name in os.environ if "TOKEN" in name))
print("on stderr", token, file=sys.stderr)
open("made.txt", "w").write("safe")
"""


def skill(root: Path, name: str, secrets: str) -> None:
    folder = root / name
    (folder / "scripts").mkdir(parents=True)
    metadata = f"metadata:\n  secrets: {secrets}\n" if secrets else ""
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Calls.\n{metadata}---\nRun `scripts/call.py`.\n")
    (folder / "scripts" / "call.py").write_text(SCRIPT)


@pytest.mark.parametrize("declared", [True, False])
async def test_it_is_given_where_declared_and_seen_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, declared: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SHOP_TOKEN", VALUE)
    monkeypatch.setenv("OTHER_TOKEN", "something-else-entirely")
    skill(tmp_path / "skills", "caller", "SHOP_TOKEN" if declared else "")
    run = tool_call("run_skill_script", skill_name="caller", script_path="scripts/call.py")
    model = ScriptedModel([run, f"it said {VALUE}"])
    workspace = tmp_path / "ws"
    workspace.mkdir()
    conversation = await AsyncConversation.create(
        AgentSpec(model=model, skill_roots=(tmp_path / "skills",)),
        workspace=workspace,
        store=f"sqlite:///{tmp_path / 'log.db'}",
        secrets=Secrets({"SHOP_TOKEN": EnvSecret("SHOP_TOKEN"), "OTHER_TOKEN": EnvSecret("OTHER_TOKEN")}),
        settings=Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path),
    )
    await conversation.send_message("call the shop")
    said: list[Any] = [update async for update in conversation.run_stream()]
    result = model.asked[1].messages[-1].parts[0].content
    assert ("<secret:SHOP_TOKEN>" in result["stdout"]) is declared, "the script had it, if it declares it"
    assert "OTHER_TOKEN" not in result["stdout"], "what is not declared is not given"
    assert (workspace / "made.txt").read_text() == "safe"
    await conversation.aclose()
    forms = (VALUE.encode(), base64.b64encode(VALUE.encode()).rstrip(b"="))
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("log.db*"))
    captured = (caplog.text + "".join(str(update) for update in said) + str(model.asked[1].messages)).encode()
    for form in forms:
        assert form not in stored
        assert form not in captured
