"""Tables beside the log: rows that other packages keep in the store's database and change together with events."""

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


class Beside(NamedTuple):
    """A package that keeps tables beside the log.

    Attributes:
        name: Begins the names of its tables and indexes, and of its statements in `Tables.run`.
        package: A Python package with `sqlite/` and `postgres/`, each with `NNNN_name.sql`, and statements in
            `queries.sql` beside and in them; see `bough.events.queries`.
    """

    name: str
    package: str

    def statements(self, dialect: str) -> dict[str, str]:
        """Return its statements as `Tables.run` names them: `<name>.<statement>`."""
        return {f"{self.name}.{name}": sql for name, sql in queries(dialect, self.package).items()}

    def steps_after(self, version: int, dialect: str) -> list[Migration]:
        """Return the migrations that lead from a version to the newest one.

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
    """What a change is given. Synchronous, valid inside the call only; everything is in one transaction.

    A change is a pure function of it: no I/O, no effects of its own, at most 50 ms; it may run again.
    """

    @property
    def connection(self) -> Any:
        """The `psycopg.Connection` on Postgres, else the `sqlite3.Connection`; for a library that joins it."""
        ...

    def run(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a package's named statement, such as `task.claim`.

        Ids go in as UUID and come out as 16 bytes; times are microseconds since 1970.

        Raises:
            Conflict: A row that must be unique already exists. The change cannot succeed any more.
        """
        ...

    def one(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Return the first row of a named statement, or None."""
        ...

    def number(self, cid: UUID) -> int:
        """Return the integer key of a conversation, for joins; of a tombstone too.

        Raises:
            NotFound: There is no such row.
        """
        ...

    def now(self) -> int:
        """Return the time by the store's clock (Postgres: the server's), in microseconds since 1970."""
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
        """Fork. See `EventStore.fork`."""
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
        """Give a lease back. See `EventStore.release`."""
        ...


Follow: TypeAlias = Callable[[Tables, UUID, StoredEvent], None]
"""What follows an event in the transaction of whatever appends it: `add(tables, conversation, event)`."""


class Follower(NamedTuple):
    """A package that writes rows whenever certain events are appended."""

    beside: Beside
    kinds: frozenset[str]
    add: Follow


def list_packages(beside: Beside | Collection[Beside]) -> tuple[Beside, ...]:
    """Return one package or several as a tuple.

    Raises:
        InvalidInput: Two different packages have one name.
    """
    packages = (beside,) if isinstance(beside, Beside) else tuple(dict.fromkeys(beside))
    if len({package.name for package in packages}) < len(packages):
        raise InvalidInput("two packages with tables beside the log have one name", hint="give each its own name")
    return packages
