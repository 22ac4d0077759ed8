"""Journeys: files of past events: removed, edited by others, of other tenants, after a kill, on disks that refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.conftest import BOUGH, Person
from tests.journeys.test_readme import use_model

from bough.testing import Answer, OpenAIServer, ServerCall

pytestmark = pytest.mark.needs("bubblewrap")

FILES = {"notes/a.txt": "one\n", "notes/deep/b.txt": "two\n", "keep.txt": "three\n"}


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def remove_notes(person: Person, server: OpenAIServer) -> None:
    """Let an agent remove a folder that it should have kept."""
    person.write(FILES)
    use_model(person, server)
    person.bough("run", "tidy up", "--policy", "allow")
    assert not (person.folder / "notes").exists()


def fork_files(person: Person, *args: str) -> tuple[str, Path]:
    """Fork the latest conversation with files of its own; return the fork's id and its folder."""
    lines = person.bough("fork", *args, "--files", "copy", "--json").stdout.splitlines()
    id = json.loads(lines[-1])["data"]["conversation"]["id"]
    return id, person.home / ".bough" / "workspaces" / id


def test_a_fork_from_before_a_removal_has_the_files_and_the_source_stays(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    call = ServerCall(tool="run_command", arguments={"command": "rm -rf notes"})
    remove_notes(person, openai_server(Answer(calls=(call,)), "tidy"))
    before = read_tree(person.folder)
    _, folder = fork_files(person, "-@1")
    assert {name: text.encode() for name, text in FILES.items()}.items() <= read_tree(folder).items()
    assert read_tree(person.folder) == before, "the source has not changed by a byte"


def test_a_fork_whose_folder_a_person_removed_says_so_and_is_deleted(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    call = ServerCall(tool="run_command", arguments={"command": "rm -rf notes"})
    remove_notes(person, openai_server(Answer(calls=(call,)), "tidy"))
    id, folder = fork_files(person, "-@1")
    shutil.rmtree(folder)
    refused = person.bough("conv", "diff", id, "--files", code=3)
    assert "is not a folder" in refused.stderr
    assert "keep_max_files" not in refused.stderr, "no setting can help"
    deleted = person.bough("conv", "delete", id, "--yes")
    assert "cannot be removed" not in deleted.stderr


def write_files(*paths: str, text: str = "written") -> Answer:
    """Return the answer of a model that writes files, all in one command."""
    command = "; ".join(f"echo {text} > {path}" for path in paths)
    return Answer(calls=(ServerCall(tool="run_command", arguments={"command": command}),))


def run_agent(person: Person, *args: str) -> str:
    """Run an agent that needs no approval; return the id of its conversation."""
    lines = person.bough("run", *args, "--policy", "allow", "--json").stdout.splitlines()
    return json.loads(lines[-1])["conversation"]


def test_a_restore_reports_what_another_conversation_of_the_folder_changed(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    person.write(FILES)
    use_model(
        person, openai_server(write_files("keep.txt", "own.txt"), "done", write_files("keep.txt", text="2"), "ok")
    )
    first = run_agent(person, "write both")
    run_agent(person, "write again")
    before = read_tree(person.folder)
    refused = person.bough("conv", "restore", f"{first}@1", "--yes", code=7)
    assert "keep.txt" in refused.stderr
    assert read_tree(person.folder) == before, "a refused restore writes nothing"
    left = person.bough("conv", "restore", f"{first}@1", "--leave", "--yes", "--json").json()
    assert left == {"files": [{"path": "own.txt", "change": "removed"}], "left": ["keep.txt"]}
    assert read_tree(person.folder) == {name: data for name, data in before.items() if name != "own.txt"}
    person.bough("conv", "restore", first, "--redo")
    assert read_tree(person.folder) == before


def test_own_edits_between_runs_survive_undo_and_redo_of_the_chat(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    person.write(FILES)
    use_model(person, openai_server(write_files("a.txt"), "done", write_files("b.txt", "keep.txt"), "done"))
    id = run_agent(person, "write a")
    person.write({"mine.txt": "mine\n", "a.txt": "written\nand mine\n"})
    before = read_tree(person.folder)
    person.bough("chat", id, "--policy", "allow", input="write b\n/undo both\n/exit\n")
    assert read_tree(person.folder) == before, "what the person wrote is there, what the turn wrote is not"
    hint = person.bough("chat", "-", input="/redo\n/exit\n").stderr
    command = re.search(r"bough (conv restore \S+ --redo)", hint)
    assert command is not None, hint
    person.bough(*command[1].split())
    after = before | {"b.txt": b"written\n", "keep.txt": b"written\n"}
    assert read_tree(person.folder) == after
    person.bough("chat", id, input="/undo files\n/exit\n")
    assert read_tree(person.folder) == before
    person.bough("chat", id, input="/redo\n/exit\n")
    assert read_tree(person.folder) == after, "a later session brings back what an earlier one took back"
    outside = [line for line in person.bough("conv", "show", id, "--json").stdout.splitlines() if '"outside"' in line]
    assert len(outside) == 1, "the person's edits are a state of their own"
    assert "mine.txt" in outside[0]


def test_after_a_kill_in_a_command_the_files_of_before_come_back(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    person.write(FILES)
    os.mkfifo(person.folder / "ready")
    command = "rm -rf notes; echo half > b.txt; echo done > ready; sleep 600"
    call = ServerCall(tool="run_command", arguments={"command": command})
    use_model(person, openai_server(Answer(calls=(call,)), "continued"))
    process = subprocess.Popen(
        [BOUGH, "run", "tidy up", "--policy", "allow"],
        cwd=person.folder,
        env=person.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert (person.folder / "ready").read_text() == "done\n"
    process.kill()
    process.wait()
    (person.folder / "ready").unlink()
    person.write({"mine.txt": "mine\n"})
    shown = person.bough("conv", "restore", "-@1", "--dry-run", "--json").json()
    assert {"path": "b.txt", "change": "removed"} in shown["files"]
    person.bough("conv", "restore", "-@1", "--yes")
    assert read_tree(person.folder).items() >= {name: text.encode() for name, text in FILES.items()}.items()
    assert not (person.folder / "b.txt").exists()
    assert "continued" in person.bough("resume", "-").output


def test_files_of_another_tenant_are_not_found(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    use_model(person, openai_server(write_files("secret.txt"), "done", "hello"))
    keys = [person.bough("keys", "create", name, "--tenant", name).stdout.strip() for name in ("one", "two")]
    with person.serve() as server, server.client(keys[0]) as one, server.client(keys[1]) as two:
        ids: list[str] = []
        for client in (one, two):
            body = {"initial_message": "write", "confirmation_policy": {"kind": "NeverConfirm"}}
            ids.append(client.post("/api/conversations", json=body).json()["id"])
            assert client.post(f"/api/conversations/{ids[-1]}/run", json={"wait": 60}).status_code == 200
        path = f"/api/conversations/{ids[0]}"
        files = one.get(f"{path}/files").json()
        assert [file["path"] for file in files["items"]] == ["secret.txt"]
        content = f"{path}/files/content?path=secret.txt"
        assert one.get(content).text == "written\n"
        answers = [two.get(content), two.get(f"{path}/files"), two.get(f"{path}/files/diff")]
        answers += [two.post(f"{path}/restore", json={"at": 1}), two.post(f"{path}/redo")]
        own = f"/api/conversations/{ids[1]}"
        answers += [
            two.post(f"{own}/apply", json={"source": ids[0]}),
            one.post(f"{path}/apply", json={"source": ids[1]}),
        ]
        assert [answer.status_code for answer in answers] == [404] * 7, [answer.text for answer in answers]
        assert not any("secret.txt" in answer.text for answer in answers)
        assert one.get(content).text == "written\n"


def test_a_fork_whose_kept_files_are_gone_says_so_and_still_runs(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    call = ServerCall(tool="run_command", arguments={"command": "rm -rf notes"})
    person.write(FILES)
    use_model(person, openai_server(Answer(calls=(call,)), "tidy", "hello"))
    source = run_agent(person, "tidy up")
    _, folder = fork_files(person, f"{source}@1")
    (kept,) = (person.home / ".bough").glob("*.files")
    shutil.rmtree(kept)
    before = read_tree(person.folder)
    restore = ["conv", "restore", f"{source}@1", "--yes"]
    commands = [["conv", "show", f"{source}@1", "--files"], restore, [*restore, "--exact"]]
    for command in [*commands, ["fork", f"{source}@1", "--files", "copy"]]:
        refused = person.bough(*command, code=3)
        assert re.search(r"the files of event \d+( or \d+)? are not here", refused.stderr), refused
        assert "hint: " in refused.stderr, refused
        assert read_tree(person.folder) == before
    assert "hello" in person.bough("run", "hello", "--policy", "allow").output
    assert FILES.keys() <= read_tree(folder).keys(), "the fork's own folder is a plain folder"


def test_neither_git_nor_an_identity_is_needed(person: Person, openai_server: Callable[..., OpenAIServer]) -> None:
    programs = person.home.parent / f"{person.home.name}-programs"
    programs.mkdir()
    for program in ("bwrap", "sh", "bash", "env"):
        (programs / program).symlink_to(str(shutil.which(program)))
    person.environment["PATH"] = f"{BOUGH.parent}:{programs}"
    call = ServerCall(tool="run_command", arguments={"command": "rm -rf notes"})
    remove_notes(person, openai_server(Answer(calls=(call,)), "tidy"))
    person.bough("conv", "restore", "-@1", "--yes")
    assert read_tree(person.folder).items() >= {name: text.encode() for name, text in FILES.items()}.items()
    _, folder = fork_files(person, "-@1")
    assert FILES.keys() <= read_tree(folder).keys()


def test_a_read_only_workspace_is_an_error_and_nothing_changes(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    person.write(FILES)
    use_model(person, openai_server(write_files("keep.txt", "new.txt"), "done"))
    id = run_agent(person, "write")
    before = read_tree(person.folder)
    read_only = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", person.folder, person.folder, "--chdir", person.folder]
    refused = person.try_command([*read_only, BOUGH, "conv", "restore", f"{id}@1", "--yes"])
    assert "Read-only file system" in refused.stderr, refused
    assert "Traceback" not in refused.output
    assert read_tree(person.folder) == before
    shown = person.try_command([*read_only, BOUGH, "conv", "diff", id, "--files"])
    assert (shown.code, "new.txt" in shown.stdout) == (0, True), shown
    person.bough("conv", "restore", f"{id}@1", "--yes")
    assert read_tree(person.folder) == {name: text.encode() for name, text in FILES.items()}


MEMORY_FORK = """
import os, signal, sys
from bough import AgentSpec, Conversation
with Conversation(AgentSpec(model="offline"), workspace=".", store="memory:") as conversation:
    if sys.argv[1:] == ["kill"]:
        fork = conversation.fork(workspace="copy")
        print(fork.workspace, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_fork_of_a_killed_temporary_store_is_removed_by_the_next_one(person: Person) -> None:
    person.write(FILES)
    # A folder of its own: any process that opens a temporary store removes what killed ones left.
    person.environment["TMPDIR"] = str(person.home / "temporary")
    (person.home / "temporary").mkdir()
    folder = Path(person.python(MEMORY_FORK, "kill", code=-9).stdout.strip())
    assert FILES.keys() <= read_tree(folder).keys()
    person.python(MEMORY_FORK)
    assert not folder.exists()
    assert read_tree(person.folder).keys() == FILES.keys() | {"program.py"}


def test_a_bundle_leaves_kept_files_out_and_says_so(
    new_person: Callable[[], Person], openai_server: Callable[..., OpenAIServer]
) -> None:
    sender, receiver = new_person(), new_person()
    sender.write(FILES)
    use_model(sender, openai_server(write_files("keep.txt"), "done"))
    id = run_agent(sender, "write")
    bundle = receiver.folder / "log.bough"
    assert "files of its workspace are not in it" in sender.bough("conv", "export", id, "-o", bundle).stdout
    receiver.bough("conv", "import", bundle, "--accept-unknown")
    assert "write" in receiver.bough("conv", "show", id).stdout
    refused = receiver.bough("conv", "show", f"{id}@1", "--files", code=3)
    assert re.search(r"the files of event \d+ are not here", refused.stderr), refused
    assert "left out of a bundle" in refused.stderr
    receiver.bough("fork", f"{id}@1", "--files", "copy", code=3)
    # With files of its own, the receiver's checks do not take those of the sender for lost.
    receiver.write(FILES)
    use_model(receiver, openai_server(write_files("own.txt"), "done"))
    own = run_agent(receiver, "write")
    assert receiver.bough("conv", "collect", "--json").json()["missing"] == []
    checks = receiver.bough("doctor", "--json").json()["checks"]
    assert [check["state"] for check in checks if check["name"] == "kept files"] == ["ok"]
    receiver.bough("conv", "restore", f"{own}@1", "--yes")
    assert not (receiver.folder / "own.txt").exists()


def test_on_a_disk_that_is_nearly_full_a_run_goes_on_without_kept_files(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    person.write(FILES)
    use_model(person, openai_server(write_files("own.txt"), "done"))
    home = person.home / ".bough"
    home.mkdir()
    small_disk = ["bwrap", "--dev-bind", "/", "/", "--size", str(64 << 20), "--tmpfs", home, "--chdir", person.folder]
    script = f"{BOUGH} run write --policy allow && {BOUGH} conv restore -@1 --yes; echo code $?; {BOUGH} conv show -"
    done = person.try_command([*small_disk, "sh", "-c", script])
    assert "code 3\n" in done.stdout, done
    assert "the disk is nearly full" in done.stderr or "disk nearly full" in done.stderr, done
    assert (person.folder / "own.txt").exists()
    assert "Traceback" not in done.output
