"""Stores of every released schema open, are brought up to date and lose nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from uuid import UUID

import pytest

import bough
from bough.errors import StoreError
from bough.events import ConversationFilter, SqliteEventStore, open_store
from bough.events.queries import migrations, queries
from bough.events.usage import sum_payloads
from bough.settings import Settings

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden"
NEWEST = migrations("sqlite")[-1].version
LAST_KIND = "01990000-0000-7000-8000-000000000076"
"""The event of the last kind that the dumps have; those of newer kinds have later ids."""
ROOT, FORK, EARLY, LATE = (UUID(f"01990000-0000-7000-8000-{n:012x}") for n in range(1, 5))


def test_migrations_are_numbered_without_gaps_in_both_dialects() -> None:
    for dialect in ("sqlite", "postgres"):
        steps = migrations(dialect)
        assert [step.version for step in steps] == list(range(1, len(steps) + 1)), dialect


def test_every_statement_is_named_once_and_described_dialects_agree() -> None:
    sqlite, postgres = (queries(dialect) for dialect in ("sqlite", "postgres"))
    assert all(sqlite.values())
    assert all(postgres.values())
    shared = {
        "record",
        "records",
        "lineage",
        "ancestry",
        "tombstone_row",
        "bury",
        "trim",
        "lease",
        "page",
        "span",
        "heads",
    }
    assert shared <= sqlite.keys() & postgres.keys()


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
async def test_a_store_of_a_released_schema_opens(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The dump of each released version is kept for ever; a migration that loses something fails here."""
    path = tmp_path / "log.db"
    db = sqlite3.connect(path)
    db.executescript((GOLDEN / "sqlite" / f"{version}.sql").read_text("utf-8"))
    db.close()
    before = _dump(path)
    store = await SqliteEventStore.open(path)
    kept = tmp_path / f"log.db.schema-{version}"
    message = f"{path} was upgraded from schema {version} to {NEWEST}; older versions of bough no longer open it"
    assert caplog.messages == ([f"{message} (they open the copy {kept})"] if version < NEWEST else [])
    assert _dump(kept) == before if version < NEWEST else not kept.exists()
    assert await store._read(lambda log: log.db.execute("pragma user_version").fetchone()[0]) == NEWEST
    root = await store.get(ROOT)
    assert (root.status, root.tags, root.config, root.owner) == ("paused", {"a": "b"}, {"agent": "x"}, "o")
    golden = [json.loads(file.read_text("utf-8")) for file in sorted((GOLDEN / "events" / "v1").glob("*.json"))]
    golden = [event for event in golden if event["id"] <= LAST_KIND]
    log = [stored async for stored in store.read(ROOT)]
    assert [(str(s.id), s.kind, s.raw.decode()) for s in log] == [(g["id"], g["kind"], g["raw"]) for g in golden[:-1]]
    assert await store.lineage(LATE) == [(ROOT, 0, 5), (FORK, 5, 6)]
    assert (await store.get(EARLY)).generation == 1
    assert len((await store.list(ConversationFilter(include_deleted=True))).items) == 4
    assert (await store.check()).findings == ()
    for cid in (ROOT, EARLY, LATE):
        own = [(stored.kind, stored.raw) async for stored in store.read(cid, (await store.get(cid)).base)]
        assert (await store.get(cid)).usage == sum_payloads(own)
    assert root.usage.requests > 0
    assert [record.id for record in (await store.list(order="cost_desc", limit=1)).items] == [ROOT]
    await store.aclose()


def _dump(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    lines = [*db.iterdump(), str(db.execute("pragma user_version").fetchone())]
    db.close()
    return lines


def _write_old_store(path: Path) -> None:
    db = sqlite3.connect(path)
    db.executescript((GOLDEN / "sqlite" / "1.sql").read_text("utf-8"))
    db.close()


async def test_no_copy_is_kept_on_request(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    _write_old_store(path)
    settings = Settings.load(tmp_path, f"sqlite:///{path}", env={"BOUGH_COPY_BEFORE_UPGRADE": "no"})
    await (await open_store(settings.store, keep_copy=settings.copy_before_upgrade)).aclose()
    assert not list(tmp_path.glob("*.schema-*"))


async def test_a_copy_that_fails_leaves_the_old_store(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    _write_old_store(path)
    before = _dump(path)
    (tmp_path / "log.db.schema-1").mkdir()  # cannot be replaced by a file
    with pytest.raises(StoreError, match="copying it before the upgrade failed") as error:
        await SqliteEventStore.open(path)
    assert "BOUGH_COPY_BEFORE_UPGRADE" in str(error.value.hint)
    assert _dump(path) == before
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(("-wal", "-shm"))) == [
        "log.db",
        "log.db.schema-1",
    ]


def test_the_version_rises_with_each_schema() -> None:
    """A store that one version has written is opened by every installation of this version."""
    source = Path(bough.__file__).parent
    schemas: dict[str, int] = {}
    for step in sorted(source.rglob("[0-9][0-9][0-9][0-9]_*.sql")):
        package = step.parent.parent.relative_to(source).as_posix()
        if not package.startswith("testing"):
            schemas[package] = int(step.name[:4])
    released: dict[str, dict[str, int]] = json.loads((GOLDEN / "schemas.json").read_text("utf-8"))
    assert released.get(bough.__version__) == schemas, "raise the version, and add its schemas to schemas.json"
