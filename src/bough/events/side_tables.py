"""Side tables: rows of other packages in the store's database, which change in one transaction with events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, Unpack
from uuid import UUID

from bough.errors import InvalidInput, StoreError
from bough.events.queries import Migration, migrations, queries
from bough.events.record import ConversationRecord, DeleteMode, Lease, StoredEvent

if TYPE_CHECKING:
    from bough.events.draft import Draft, ForkFields
    from bough.events.model import Event

T = TypeVar("T")


class SideTables(NamedTuple):
    """A package with side tables.

    Attributes:
        name: Prefix of the names of its tables and indexes, and of its statements in `Tables.run`.
        package: A Python package with `sqlite/` and `postgres/`, each with `NNNN_name.sql`, and statements in
            `queries.sql` in the package and in these folders; see `bough.events.queries`.
    """

    name: str
    package: str

    def statements(self, dialect: str) -> dict[str, str]:
        """Return the statements by the names that `Tables.run` takes: `<name>.<statement>`."""
        return {f"{self.name}.{name}": sql for name, sql in queries(dialect, self.package).items()}

    def steps_after(self, version: int, dialect: str) -> list[Migration]:
        """Return the migrations from a version to the newest one.

        Raises:
            StoreError: The tables come from a newer version of the package.
        """
        steps = migrations(dialect, self.package)
        newest = steps[-1].version
        if version > newest:
            raise StoreError(
                f"the tables of {self.name!r} have schema {version}; this bough knows up to {newest}",
                hint="upgrade bough",
                details={"package": self.name, "schema": version, "known": newest},
            )
        return [step for step in steps if step.version > version]


class Tables(Protocol):
    """Access to rows and the log inside a change. Synchronous; everything is in one transaction.

    Only valid inside the call. A change must not do I/O or have side effects, since it may run again, and should take
    at most 50 ms.
    """

    @property
    def connection(self) -> Any:
        """The `psycopg.Connection` on Postgres, else the `sqlite3.Connection`, for libraries."""
        ...

    def run(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a package's named statement, such as `task.claim`.

        Ids go in as UUID and come out as 16 bytes; times are microseconds since 1970.

        Raises:
            Conflict: A unique row already exists. The change can no longer succeed.
        """
        ...

    def one(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Return the first row of a named statement, or None."""
        ...

    def number(self, cid: UUID) -> int:
        """Return the integer key of a conversation for joins, also of a tombstone.

        Raises:
            NotFound: The row does not exist.
        """
        ...

    def now(self) -> int:
        """Return the time of the store's clock (on Postgres the server's), in microseconds since 1970."""
        ...

    def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        ...

    def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] | Draft = ()
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        ...

    def append(
        self,
        cid: UUID,
        events: Sequence[Event] | Draft,
        *,
        generation: int | None = None,
        expected_head: int | None = None,
    ) -> int:
        """Append all events or none and return the new head. See `EventStore.append`."""
        ...

    def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork a conversation. See `EventStore.fork`."""
        ...

    def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `EventStore.delete`."""
        ...

    def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take a lease. See `EventStore.acquire`."""
        ...

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease. See `EventStore.renew`."""
        ...

    def release(self, lease: Lease) -> None:
        """Release a lease. See `EventStore.release`."""
        ...


OnAppend: TypeAlias = Callable[[Tables, UUID, StoredEvent], None]
"""Called as `add(tables, conversation, event)` in the transaction that appends an event."""


class Follower(NamedTuple):
    """A package that writes rows whenever events of certain kinds are appended."""

    side_tables: SideTables
    kinds: frozenset[str]
    add: OnAppend


def list_packages(side_tables: SideTables | Collection[SideTables]) -> tuple[SideTables, ...]:
    """Return one or several packages as a tuple without duplicates.

    Raises:
        InvalidInput: Two different packages have the same name.
    """
    packages = (side_tables,) if isinstance(side_tables, SideTables) else tuple(dict.fromkeys(side_tables))
    if len({package.name for package in packages}) < len(packages):
        raise InvalidInput("two packages with side tables have the same name", hint="give each package a unique name")
    return packages
