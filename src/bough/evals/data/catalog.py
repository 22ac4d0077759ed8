"""The catalogue of a warehouse: projects, datasets, tables and columns, as its process reports them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bough.evals.data.fault import QueryError, suggest_similar
from bough.types import JsonObject


@dataclass(frozen=True)
class WarehouseColumn:
    """A column of a table.

    Attributes:
        type: BigQuery's name of the type.
        mode: NULLABLE, REQUIRED or REPEATED.
    """

    name: str
    type: str
    mode: str
    description: str


@dataclass(frozen=True)
class WarehouseTable:
    """A table or view.

    Attributes:
        kind: TABLE or VIEW.
        rows: Number of rows; 0 for a view of DuckDB.
    """

    name: str
    kind: str
    rows: int
    description: str
    columns: tuple[WarehouseColumn, ...]


@dataclass(frozen=True)
class WarehouseDataset:
    """A dataset and its tables by name.

    Attributes:
        left_out: Unusable tables, each with the reason, for example views of tables that were changed or removed.
    """

    description: str
    tables: Mapping[str, WarehouseTable]
    location: str = "local"
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class WarehouseCatalog:
    """The names a query can use.

    Attributes:
        projects: Datasets by name, by project.
        temporary: Names of the session's temporary tables, in lower case.
    """

    projects: Mapping[str, Mapping[str, WarehouseDataset]]
    temporary: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def of(cls, described: JsonObject, mask: Callable[[str], str] = str) -> WarehouseCatalog:
        """Return the catalogue from the description that a warehouse process sent.

        Args:
            mask: Removes private paths from a message of the process.
        """
        projects = {
            project: {name: _read_dataset(dataset, mask) for name, dataset in datasets.items()}
            for project, datasets in described["projects"].items()
        }
        return cls(projects, frozenset(described["temporary"]))

    def datasets(self, project: str) -> Mapping[str, WarehouseDataset]:
        """Return the datasets of a project.

        Raises:
            QueryError: The project does not exist.
        """
        if project not in self.projects:
            raise QueryError("PROJECT_NOT_FOUND", f"no project {project!r}{suggest_similar(project, self.projects)}")
        return self.projects[project]

    def dataset(self, project: str, dataset: str) -> WarehouseDataset:
        """Return a dataset.

        Raises:
            QueryError: The dataset or its project does not exist.
        """
        datasets = self.datasets(project)
        if dataset not in datasets:
            raise QueryError(
                "DATASET_NOT_FOUND", f"no dataset {dataset!r} in {project!r}{suggest_similar(dataset, datasets)}"
            )
        return datasets[dataset]

    def table(self, project: str, dataset: str, table: str) -> WarehouseTable:
        """Return a table.

        Raises:
            QueryError: The table, its dataset or its project does not exist.
        """
        dataset_entry = self.dataset(project, dataset)
        tables = dataset_entry.tables
        if table in dataset_entry.left_out:
            reason = dataset_entry.left_out[table]
            raise QueryError("TABLE_NOT_FOUND", f"{project}.{dataset}.{table} cannot be used: {reason}")
        if table not in tables:
            raise QueryError(
                "TABLE_NOT_FOUND", f"no table {table!r} in {project}.{dataset}{suggest_similar(table, tables)}"
            )
        return tables[table]


def _read_dataset(described: JsonObject, mask: Callable[[str], str]) -> WarehouseDataset:
    """Return a dataset from its description, with the reasons of unusable tables masked."""
    tables: Sequence[JsonObject] = described["tables"]
    left_out: Mapping[str, str] = described.get("left_out") or {}
    return WarehouseDataset(
        described["description"],
        {
            table["name"]: WarehouseTable(
                table["name"],
                table["kind"],
                table["rows"],
                table["description"],
                tuple(WarehouseColumn(**column) for column in table["columns"]),
            )
            for table in tables
        },
        left_out={name: mask(reason) for name, reason in left_out.items()},
    )
