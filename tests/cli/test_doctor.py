"""`bough doctor`: it looks for itself, says how to fix what is broken, and gives no secret away."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.files import FileStore, write
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call
from bough.testing.postgres import make_database


def test_it_names_isolation_models_store_and_versions(cli: Any) -> None:
    cli("run", "bake a cake")
    found = cli.data("doctor")
    checks = {(check["part"], check["name"]): check for check in found["checks"]}
    assert found["works"] is True
    assert checks["executor", "sandbox"]["said"].startswith("isolation reached: ")
    assert checks["model", "default"]["said"].startswith("offline ")
    store, states, *_ = (check for check in found["checks"] if check["part"] == "store")
    events = len(cli.data("conv", "show")["events"])
    assert store["said"] == f"1 conversations, {events} events, ok"
    assert (states["name"], states["state"]) == ("kept states", "ok")
    assert {name for part, name in checks if part == "version"} >= {"bough", "python", "sqlite", "pydantic-ai-slim"}


def test_keys_are_told_but_never_printed(cli: Any) -> None:
    for args in (["doctor"], ["doctor", "--json"]):
        done = cli(*args, OPENAI_API_KEY="sk-very-secret-value", GROQ_API_KEY="gsk-other-secret")
        assert done.returncode == 0
        assert "secret" not in done.stdout + done.stderr
        assert "OPENAI_API_KEY" in done.stdout


def test_it_makes_no_store_and_no_home(cli: Any, bough_home: Any) -> None:
    found = cli.data("doctor")
    (store,) = (check for check in found["checks"] if check["part"] == "store" and check["name"].startswith("sqlite"))
    assert store["said"] == "0 conversations, 0 events, ok"
    assert not bough_home.exists()


def fork_with_files(home: Path, folder: Path) -> tuple[str, Path]:
    """Make a conversation and a fork of it with a copy of its files; return the fork's id and folder."""

    async def make() -> tuple[str, Path]:
        settings = Settings.load(home=home, env={}, cwd=folder)
        spec = AgentSpec(name="tester", model="offline", skills=())
        source = await AsyncConversation.create(spec, workspace=folder, settings=settings)
        async with source, await source.fork(workspace="copy") as fork:
            return str(fork.id), fork.workspace

    return asyncio.run(make())


def test_folders_that_nobody_has_are_told_and_a_deleted_fork_leaves_none(cli: Any, bough_home: Path) -> None:
    fork, folder = fork_with_files(bough_home, cli.folder)
    assert (folder / "README.md").exists()
    assert "folders" not in [check["name"] for check in cli.data("doctor")["checks"]]
    orphan = bough_home / "workspaces" / str(uuid4())
    orphan.mkdir()
    found = cli.data("doctor")
    (folders,) = (check for check in found["checks"] if check["name"] == "folders")
    assert (folders["state"], str(orphan) in folders["said"], str(folder) in folders["said"]) == ("broken", True, False)
    assert found["works"] is True, "it harms nothing"
    assert orphan.exists(), "whoever asks removes it: another store may have it"
    assert cli("conv", "delete", fork, "--yes").returncode == 0
    assert not folder.exists()
    assert (cli.folder / "README.md").exists()


def test_a_damaged_store_is_found_and_told_with_6(cli: Any, bough_home: Any) -> None:
    cli("run", "bake a cake")
    store = bough_home / "bough.db"
    data = bytearray(store.read_bytes())
    data[len(data) // 2 :] = b"\0" * (len(data) - len(data) // 2)
    store.write_bytes(data)
    done = cli("doctor", "--json")
    assert done.returncode == 6
    report = json.loads(done.stdout)
    assert report["data"]["works"] is False
    broken = [check for check in report["data"]["checks"] if check["part"] == "store"]
    assert {check["state"] for check in broken} == {"broken"}
    assert any(check["fix"] for check in broken), "what is readable can be taken out"


def test_a_model_that_cannot_be_used_is_told_with_6(cli: Any) -> None:
    done = cli("doctor", BOUGH_MODEL="anthropic:claude-sonnet-5-5")
    assert done.returncode == 6
    assert "fix: " in done.stdout


def test_it_counts_tasks_by_state(cli: Any) -> None:
    cli("run", "--detach", "bake a cake")
    checks = {(check["part"], check["name"]): check["said"] for check in cli.data("doctor")["checks"]}
    assert checks["tasks", "rows"] == "1 pending"
    assert checks["tasks", "dispatch"] == "in process"


@pytest.mark.needs("postgres")
def test_it_checks_the_engine_on_postgres_and_prints_no_password(cli: Any, postgres: str) -> None:
    database = make_database(postgres)
    secret = database.replace("bough@", "bough:very-secret@")
    done = cli("doctor", "--store", secret)
    assert "very-secret" not in done.stdout + done.stderr
    assert re.search(r"procrastinate 3\.\d+\.\d+, schema \d\d\.\d\d\.", done.stdout)
    with Connection.connect(database, autocommit=True) as db:
        db.execute("insert into bough_jobs.applied (version) values ('99.00.00_01_pre_of_a_newer_release')")
    done = cli("doctor", "--store", secret, "--json")
    assert "very-secret" not in done.stdout + done.stderr
    (broken,) = [check for check in json.loads(done.stdout)["data"]["checks"] if check["part"] == "tasks"]
    assert (broken["state"], broken["fix"]) == ("broken", "upgrade procrastinate")


def test_a_damaged_row_breaks_only_itself(cli: Any, bough_home: Any) -> None:
    """Lists, trees and exports give the others and say which one is damaged; `doctor` names it."""
    cli("run", "bake a cake")
    damaged = cli.data("conv", "list")["conversations"][0]["id"]
    cli("fork", "-@2")
    (whole,) = [each["id"] for each in cli.data("conv", "list")["conversations"] if each["id"] != damaged]
    with sqlite3.connect(bough_home / "bough.db") as db:
        db.execute("update conversation set title = 'x' where forked_from is null and parent is not null")
    db.close()
    listed = cli.data("conv", "list")
    assert [each["id"] for each in listed["conversations"]] == [damaged]
    assert [finding["conversation"] for finding in listed["damaged"]] == [whole]
    tree = cli("conv", "tree", damaged)
    assert (tree.returncode, f"the row of {whole} is damaged" in " ".join(tree.stdout.split())) == (0, True)
    assert cli("conv", "export", damaged, "--format", "jsonl").returncode == 0
    assert cli("conv", "show", whole).returncode == 6
    doctor = cli("doctor")
    assert doctor.returncode == 6
    assert "is damaged" in doctor.stdout


def test_a_damaged_kept_state_is_told_and_keeps_nothing_from_working(cli: Any, bough_home: Any) -> None:
    cli("run", "bake a cake")
    assert cli("doctor").returncode == 0
    with sqlite3.connect(bough_home / "bough.db") as db:
        db.execute("insert into snapshot (k, fold, turns, digest, state) values ((1 << 32) | 2, 'x', 0, 1, x'00')")
    db.close()
    found = cli.data("doctor")
    (states,) = (check for check in found["checks"] if check["name"] == "kept states")
    assert (states["state"], states["said"]) == ("broken", "1 kept, 1 by another version of bough, 1 damaged")
    assert found["works"] is True


def keep_files(home: Path, folder: Path) -> str:
    """Let an agent write a file whose content is kept; return the id of its conversation."""

    async def make() -> str:
        settings = Settings.load(home=home, env={}, cwd=folder, keep_files=True)
        model = ScriptedModel([tool_call("write_file", path="a.txt", content="new " * 99), "done"])
        spec = AgentSpec(name="writer", model=model, workspace_access="write", skills=())
        async with await AsyncConversation.create(spec, workspace=folder, settings=settings) as conversation:
            await conversation.send_message("go")
            await conversation.run()
            return str(conversation.id)

    return asyncio.run(make())


def read_kept_checks(cli: Any, *options: str) -> list[dict[str, str]]:
    checks = cli.data("doctor", *options)["checks"]
    return [check for check in checks if check["name"] == "kept files"]


def test_damaged_and_missing_kept_files_name_their_events(cli: Any, bough_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("old " * 99)
    id = keep_files(bough_home, folder)
    (sound,) = read_kept_checks(cli)
    assert (sound["state"], "pack" in sound["said"]) == ("ok", True)
    packs = sorted((bough_home / "bough.db.files/objects.git/objects/pack").glob("*.pack"))
    for pack in packs:
        data = bytearray(pack.read_bytes())
        data[14] ^= 0xFF
        pack.chmod(0o600)
        pack.write_bytes(data)
    damaged, missing = read_kept_checks(cli)
    assert (damaged["state"], damaged["fix"]) == ("broken", "bough doctor --repair")
    assert packs[0].name in damaged["said"]
    repaired = read_kept_checks(cli, "--repair")
    assert any(check["said"].startswith("copied ") for check in repaired)
    missing = repaired[-1]
    assert "are not whole" in missing["said"]
    seqs = [int(seq) for seq in re.findall(rf"{id.replace('-', '')[-8:]}@(\d+)", missing["said"])]
    kinds = [event["kind"] for event in cli.data("conv", "show", id)["events"]]
    assert [kinds[seq] for seq in seqs] == ["FilesKept"] * len(seqs) != []
    assert cli("conv", "show", id).returncode == 0
    assert cli.data("doctor")["works"] is True, "conversations work without their kept files"


def test_an_interrupted_restore_is_found_and_finished(cli: Any, bough_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("old")
    id = keep_files(bough_home, folder)
    kept = FileStore(bough_home / "bough.db.files", step=_stop_in_the_middle)
    trees = [event["tree"] for event in cli.data("conv", "show", id)["events"] if event["kind"] == "FilesKept"]
    with pytest.raises(KeyboardInterrupt), kept.objects() as objects:
        write(kept, objects, folder, trees[-1], trees[0])
    kept.close()
    (found,) = read_kept_checks(cli)
    assert (found["state"], str(folder) in found["said"]) == ("broken", True)
    assert read_kept_checks(cli, "--repair")[0]["said"] == f"finished writing {folder}"
    assert (folder / "a.txt").read_text() == "old"
    assert [check["state"] for check in read_kept_checks(cli)] == ["ok"]


def _stop_in_the_middle(step: str) -> None:
    if step == "file renamed":
        raise KeyboardInterrupt
