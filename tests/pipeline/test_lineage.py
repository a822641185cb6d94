"""A fitted table in W&B: read back by the client's own reader, with the records it was made of."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.certificate import certificate_path
from pipeline.cli import main
from pipeline.store import read_store
from pipeline.track import run_id, track
from tests.pipeline.many_records import GOLDEN
from tests.pipeline.test_track import inspect, records

CELLS = ("76d16384afeb17b2", "b1551f557a75c655")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table fitted on two cells of the recorded default study, beside a copy of their records."""
    out = tmp_path_factory.mktemp("lineage") / "study"
    for part in ("specs", "records"):
        (out / part).mkdir(parents=True)
        for key in CELLS:
            for file in (GOLDEN / part).glob(f"{key}*"):
                shutil.copy(file, out / part)
    table = out / "fitted.toml"
    main_ends(0, "fit", str(out), "-o", str(table), "--draws", "20")
    return table


def main_ends(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == code


def publish(table: Path, code: int = 0) -> None:
    main_ends(code, "publish", str(table), "--records", str(table.parent), "--project", "p")


@pytest.fixture(autouse=True)
def staged_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))


def artifacts(run: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in records(run, "artifact")}


def test_a_fit_takes_the_records_of_its_runs_and_gives_a_table(fitted: Path) -> None:
    """Reference: the records' and the table's own files; the edge is W&B's use_after_commit."""
    store = read_store(fitted.parent)
    track(store, mode="offline", project="p", group="g")
    publish(fitted)
    runs = {path.name[len("offline-run-20261130_000000-") :]: path for path in _runs(fitted)}
    digest = json.loads(certificate_path(fitted).read_text())["table"]["sha256"]
    fit = artifacts(runs.pop(f"fit-{digest[:16]}"))
    (table,) = [one for one in fit.values() if one["type"] == "coefficients"]
    assert table["name"] == "fitted"
    assert sorted(one["path"] for one in table["manifest"]["contents"]) == [
        "fitted.certificate.json",
        "fitted.toml",
    ]
    named = [f"records-{cell.key}" for cell in store.cells]
    assert json.loads(table["metadata"])["fitted_on"] == named
    for cell in store.cells:
        given = artifacts(runs[run_id(cell, "g")])[f"records-{cell.key}"]
        taken = fit[f"records-{cell.key}"]
        assert taken["use_after_commit"] is True
        assert "use_after_commit" not in given
        assert taken["digest"] == given["digest"]
        files = sorted((fitted.parent / "records").glob(f"{cell.key}.*"))
        assert [one["path"] for one in given["manifest"]["contents"]] == [f.name for f in files]


def test_the_run_of_a_fit_says_how_good_it_is(fitted: Path) -> None:
    """Reference: the certificate's own figures."""
    publish(fitted)
    certificate = json.loads(certificate_path(fitted).read_text())
    newest = max(_runs(fitted), key=lambda path: path.stat().st_mtime)
    summary = json.loads(inspect(newest, "--summary"))
    assert summary["config"]["prior"] == certificate["prior"]["name"]
    assert summary["config"]["seed"] == certificate["fit"]["seed"]
    figures = summary["summary"]
    assert figures["measured_calls"] == certificate["sightings"]["measured"]
    assert figures["coefficients"]["nrows"] == len(certificate["coefficients"])
    assert figures["errors"] == certificate["errors"]


def _runs(fitted: Path) -> list[Path]:
    return sorted((fitted.parent / "wandb").glob("offline-run-*"))


def test_a_table_fitted_on_other_records_is_refused(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: one record fewer is another set of sightings."""
    other = tmp_path / "other"
    shutil.copytree(fitted.parent, other, ignore=shutil.ignore_patterns("wandb"))
    sorted((other / "records").iterdir())[0].unlink()
    main_ends(2, "publish", str(fitted), "--records", str(other))
    assert "was not fitted on the records under" in capsys.readouterr().err
    assert not (other / "wandb").exists()


def test_a_table_without_its_certificate_is_refused(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the certificate is what ties a table to its records."""
    shutil.copy(fitted, tmp_path / "bare.toml")
    main_ends(2, "publish", str(tmp_path / "bare.toml"), "--records", str(fitted.parent))
    assert "bare.certificate.json" in capsys.readouterr().err
