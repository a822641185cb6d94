"""The last certified table: found by its certificate, of the same trainer, the newest."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from pipeline.certificate import certificate_path
from pipeline.schedule.certified import last_certified

SHIPPED = Path(str(files("planner.tables") / "nonfull-h200.toml"))


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The shipped certified table, said to be fitted ten years later."""
    table = tmp_path / "tables" / "newer.toml"
    table.parent.mkdir()
    shutil.copy(SHIPPED, table)
    certificate = json.loads(certificate_path(SHIPPED).read_text())
    certificate["fit"]["date"] = "2036-11-30"
    certificate_path(table).write_text(json.dumps(certificate))
    return table


def test_the_shipped_table_is_found_from_the_one_it_was_fitted_from(tmp_path: Path) -> None:
    """Reference: nonfull-h200's certificate, whose prior is nonfull-derived."""
    choice = last_certified("nonfull-derived", [tmp_path])
    assert choice.coefficients == str(SHIPPED)
    assert "certified on" in choice.why[0]


def test_the_newest_counts(newer: Path) -> None:
    """Reference: the dates of the two certificates."""
    assert last_certified("nonfull-derived", [newer.parent]).coefficients == str(newer)


def test_a_table_that_was_touched_is_passed_over_by_name(newer: Path) -> None:
    """Reference: the certificate's hash of its table."""
    newer.write_text(newer.read_text() + "\n# edited\n")
    choice = last_certified("nonfull-derived", [newer.parent])
    assert choice.coefficients == str(SHIPPED)
    assert f"passed over {newer}: " in choice.why[1]
    certificate_path(newer).write_text("{")
    assert f"passed over {newer}: " in last_certified("nonfull-derived", [newer.parent]).why[1]


def test_a_table_of_another_trainer_is_none(newer: Path) -> None:
    """Reference: nothing shipped or given is fitted from megatron-local."""
    choice = last_certified("megatron-local", [newer.parent])
    assert choice.coefficients == "megatron-local"
    assert choice.why == (
        "no certified table is fitted from megatron-local; priced with megatron-local itself",
    )
