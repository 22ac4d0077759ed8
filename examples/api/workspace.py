"""An agent that works in a folder: it reads, writes and runs commands there, and nowhere else."""

from pathlib import Path

from bough import AgentSpec, AllowList, Conversation

folder = Path("project")
folder.mkdir()
(folder / "todo.txt").write_text("write the docs\n")

developer = AgentSpec(name="developer", model="openai:gpt-5", workspace_access="write")

with Conversation(developer, workspace=folder, allow_list=AllowList.of("read_file", "write_file")) as conversation:
    conversation.send_message("Do what is in todo.txt.")
    print(conversation.run().output)

    with conversation.fork(workspace="copy", title="in a copy") as attempt:
        attempt.send_message("Now rewrite it in French.")
        print(attempt.run().output)
        print("copy:", (attempt.workspace / "docs.md").read_text().strip())

print("project:", (folder / "docs.md").read_text().strip())
