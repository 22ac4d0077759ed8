"""What is in a warehouse: projects, datasets, tables, columns, as its process described them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bough.evals.data.fault import QueryError, nearest
from bough.types import JsonObject


@dataclass(frozen=True)
class WarehouseColumn:
    """A column; `type` is BigQuery's name of its type, `mode` NULLABLE, REQUIRED or REPEATED."""

    name: str
    type: str
    mode: str
    description: str


@dataclass(frozen=True)
class WarehouseTable:
    """A table or view, with its number of rows."""

    name: str
    kind: str
    rows: int
    description: str
    columns: tuple[WarehouseColumn, ...]


@dataclass(frozen=True)
class WarehouseDataset:
    """A dataset and its tables by name.

    Attributes:
        left_out: Tables that cannot be used, with the reason: views of what was changed or removed since.
    """

    description: str
    tables: Mapping[str, WarehouseTable]
    location: str = "local"
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class WarehouseCatalog:
    """Everything that can be named in a query: project, dataset, table; and the session's temporary tables."""

    projects: Mapping[str, Mapping[str, WarehouseDataset]]
    temporary: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def of(cls, described: JsonObject, mask: Callable[[str], str] = str) -> WarehouseCatalog:
        """Return the catalogue that a warehouse process described.

        Args:
            mask: Makes a message of the process one that may be shown.
        """
        projects = {
            project: {name: _read_dataset(dataset, mask) for name, dataset in datasets.items()}
            for project, datasets in described["projects"].items()
        }
        return cls(projects, frozenset(described["temporary"]))

    def datasets(self, project: str) -> Mapping[str, WarehouseDataset]:
        """Return the datasets of a project.

        Raises:
            QueryError: There is no such project.
        """
        if project not in self.projects:
            raise QueryError("PROJECT_NOT_FOUND", f"no project {project!r}{nearest(project, self.projects)}")
        return self.projects[project]

    def dataset(self, project: str, dataset: str) -> WarehouseDataset:
        """Return a dataset.

        Raises:
            QueryError: It, or its project, is not there.
        """
        datasets = self.datasets(project)
        if dataset not in datasets:
            raise QueryError("DATASET_NOT_FOUND", f"no dataset {dataset!r} in {project!r}{nearest(dataset, datasets)}")
        return datasets[dataset]

    def table(self, project: str, dataset: str, table: str) -> WarehouseTable:
        """Return a table.

        Raises:
            QueryError: It, its dataset or its project is not there.
        """
        found = self.dataset(project, dataset)
        tables = found.tables
        if table in found.left_out:
            raise QueryError("TABLE_NOT_FOUND", f"{project}.{dataset}.{table} cannot be used: {found.left_out[table]}")
        if table not in tables:
            raise QueryError("TABLE_NOT_FOUND", f"no table {table!r} in {project}.{dataset}{nearest(table, tables)}")
        return tables[table]


def _read_dataset(described: JsonObject, mask: Callable[[str], str]) -> WarehouseDataset:
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
