"""Skills: folders of know-how that are read when they are needed, with scripts that run in the sandbox."""

from pathlib import Path

from bough import AgentSpec, Conversation
from bough.events import ScriptRan, SkillActivated

SKILL = """\
---
name: greeting
description: Greets people in their own language. Use it when somebody is to be welcomed.
---
Run `scripts/greet.sh NAME` and answer with what it prints.
"""
folder = Path("skills/greeting")
(folder / "scripts").mkdir(parents=True)
(folder / "SKILL.md").write_text(SKILL)
(folder / "scripts" / "greet.sh").write_text('#!/bin/sh\necho "Bom dia, $1!"\n')

host = AgentSpec(name="host", model="openai:gpt-5", skill_roots=[Path("skills")])

with Conversation(host) as conversation:
    print("skills:", *(skill.name for skill in conversation.skills.list_all()))
    conversation.send_message("Welcome Inês, who is from Porto.")
    print(conversation.run().output)
    for stored in conversation.events:
        if isinstance(stored.event, SkillActivated | ScriptRan):
            print(stored.seq, stored.kind)
