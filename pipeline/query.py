"""Query: SQL over a sweep's records, in DuckDB's memory; the files on disk stay as they are.

Tables: ``records``, one row for each call and rank, and ``terms``, one for each term of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from pipeline.store import Row, read_store, rows, term_rows
from planner.errors import PlannerError


class QueryError(PlannerError):
    """A query that cannot run: no records, or SQL that DuckDB does not take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows of a query, and what of the records could not be read."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    faults: tuple[str, ...]


def ask(out: Path, sql: str, export: Path | None = None) -> Answer:
    """Run one statement over the records under ``out``, and export its rows as Parquet.

    Raises
    ------
    QueryError
        Where there are no records, or DuckDB refuses the statement or the file.
    """
    store = read_store(out)
    if not store.cells:
        raise QueryError(f"{out} holds no records; a sweep writes them")
    with duckdb.connect(config={"threads": 1}) as connection:
        _fill(connection, "records", rows(store))
        _fill(connection, "terms", term_rows(store))
        try:
            statements = connection.extract_statements(sql)
            if [one.type for one in statements] != [duckdb.StatementType.SELECT]:
                raise QueryError("records are only read: ask with one SELECT")
            relation = connection.sql(sql)
            if export is not None:
                export.parent.mkdir(parents=True, exist_ok=True)
                relation.write_parquet(str(export))
            return Answer(tuple(relation.columns), tuple(relation.fetchall()), store.faults)
        except duckdb.Error as error:
            raise QueryError(f"{error}; tables are records and terms") from error


def _fill(connection: duckdb.DuckDBPyConnection, name: str, found: Sequence[Row]) -> None:
    columns = list(found[0]) if found else []
    if not columns:
        connection.execute(f"CREATE TABLE {name} (key VARCHAR)")
        return
    kinds = [_kind([row.get(column) for row in found]) for column in columns]
    inside = ", ".join(f'"{c}" {kind}' for c, kind in zip(columns, kinds, strict=True))
    connection.execute(f"CREATE TABLE {name} ({inside})")
    places = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {name} VALUES ({places})",
        [[row.get(column) for column in columns] for row in found],
    )


def _kind(values: Sequence[Any]) -> str:
    """Return the SQL type that holds every value of a column."""
    seen = {type(value) for value in values if value is not None}
    if seen <= {bool} and seen:
        return "BOOLEAN"
    if seen <= {int, bool} and seen:
        return "BIGINT"
    if seen <= {int, float, bool} and seen:
        return "DOUBLE"
    return "VARCHAR"
