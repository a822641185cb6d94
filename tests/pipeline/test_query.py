"""SQL over records, and its Parquet."""

import duckdb
import pytest
from typer.testing import CliRunner

from pipeline.cli import application
from pipeline.query import QueryError, ask
from pipeline.store import read_store, rows
from tests.conftest import GOLDEN

STUDY = GOLDEN / "default_study"


def test_sums_are_those_of_the_records():
    """Reference: the same sum, by Python over the store's rows."""
    answer = ask(STUDY, "SELECT topology, sum(observed_peak_bytes) FROM records GROUP BY 1")
    by_hand: dict[str, int] = {}
    for row in rows(read_store(STUDY)):
        by_hand[row["topology"]] = by_hand.get(row["topology"], 0) + row["observed_peak_bytes"]
    assert dict(answer.rows) == by_hand


def test_terms_add_up_to_the_expected_peak():
    """Law: a record's planned terms sum to its expected peak, within a byte a term."""
    answer = ask(
        STUDY,
        "SELECT max(abs(r.planned_expected_bytes - t.total)) FROM records r JOIN (SELECT key, "
        "rank, call, sum(planned_bytes) total FROM terms GROUP BY ALL) t USING (key, rank, call)",
    )
    assert answer.rows[0][0] <= 30


def test_export_reads_back(tmp_path):
    """Reference: DuckDB's own reader of Parquet."""
    path = tmp_path / "rows.parquet"
    answer = ask(STUDY, "SELECT key, rank FROM records ORDER BY ALL", path)
    assert tuple(duckdb.sql(f"SELECT * FROM '{path}'").fetchall()) == answer.rows


@pytest.mark.parametrize("sql", ["SELECT nothing FROM records", "SELEC", "CREATE TABLE x (i INT)"])
def test_what_is_no_question_is_refused(sql):
    """Law: SQL that gives no rows is an error that names the tables or asks for SELECT."""
    with pytest.raises(QueryError, match=r"records and terms|SELECT"):
        ask(STUDY, sql)


def test_the_command_prints_and_refuses(tmp_path):
    """Law: exit code 0 with rows, 2 where a folder holds no records."""
    app = application("query")
    result = CliRunner().invoke(app, ["query", "SELECT 41 + 1 AS n", "--out", str(STUDY)])
    assert result.exit_code == 0
    assert "42" in result.output
    missing = CliRunner().invoke(app, ["query", "SELECT 1", "--out", str(tmp_path)])
    assert missing.exit_code == 2
