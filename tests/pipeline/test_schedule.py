"""`peakcast schedule` as a shell and a scheduler run it: entries, nights, collisions, alerts."""

import json
import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import psutil
import pytest

from jobs.record import read_records, write_records
from pipeline.cli import main
from pipeline.schedule.lease import hold
from pipeline.schedule.run import _sweep_folder
from tests.pipeline.conftest import ROOT, STUBS
from tests.pipeline.test_track import offline_runs, records
from tests.waiting import is_alive, until

CELLS = (
    *("topology=ep1_cp1", "weights=random", "weights.routing=balanced", "workload.seed=1,2"),
    "launcher.retries=0",
)


def call(*options: str, entry: str = "ok", tracker: str = "disabled") -> list[str]:
    """Return the command line of a schedule of two cells whose ranks are stubs."""
    overrides = (*CELLS, f"launcher.entry=stub_rank:{entry}", f"tracker={tracker}")
    return [sys.executable, "-m", "pipeline.cli", "schedule", "nightly", *options, "--", *overrides]


def environment(home: Path) -> dict[str, str]:
    own = {"PYTHONPATH": f"{STUBS}:{ROOT}", "XDG_CACHE_HOME": str(home), "WANDB_API_KEY": ""}
    return os.environ | own


def now(home: Path, **how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        call("--now", "--out", str(home), **how),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(home),
        cwd=home.parent,
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a schedule's folder after its first night, which a certified table priced."""
    home = tmp_path_factory.mktemp("first") / "a, nightly"
    fitted = [str(ROOT / "tests" / "golden" / "default_study"), "--draws", "10"]
    with pytest.raises(SystemExit) as left:
        main(["fit", *fitted, "-o", str(home / "tables" / "fitted.toml")])
    assert left.value.code == 0
    done = now(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"priced with {home / 'tables' / 'fitted.toml'}, certified on " in done.stdout
    assert "the first sweep; it is the baseline" in done.stdout
    specs = [json.loads(path.read_text()) for path in home.glob("20*/specs/*.json")]
    assert {spec["coefficients"] for spec in specs} == {str(home / "tables" / "fitted.toml")}
    return Path(shutil.copytree(home, home.with_name("copy")))


@pytest.fixture
def home(first: Path) -> Path:
    """That folder, a day old, where it was: its table's path is a part of its cells' keys."""
    home = first.with_name("a, nightly")
    shutil.rmtree(home)
    shutil.copytree(first, home)
    (sweep,) = home.glob("20*")
    sweep.rename(home / "2001-02-03")
    return home


def sweeps(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob("20*"))


def test_a_night_without_news_runs_nothing_and_is_whole(home: Path) -> None:
    """Reference: the records of the night before, taken over byte for byte."""
    baseline = (home / "baseline.json").read_bytes()
    done = now(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cells were recorded by 2001-02-03 with the same code" in done.stdout
    assert "nothing to do: all 2 cells are recorded" in done.stdout
    assert "no worse" in done.stdout
    before, tonight = sweeps(home)
    for part in ("records", "specs", "logs"):
        kept = {path.name: path.read_bytes() for path in (home / before / part).iterdir()}
        assert kept
        taken = {path.name: path.read_bytes() for path in (home / tonight / part).iterdir()}
        assert taken == kept
    assert (home / tonight / "report.html").exists()
    assert (home / "baseline.json").read_bytes() == baseline


def test_other_code_takes_nothing_over(home: Path) -> None:
    """Reference: the rule; a night of the same code takes from the last one with its fingerprint,
    and a second night of one date with other code is told apart by a number."""
    same, other = {"sources": "same"}, {"sources": "other"}
    (home / "2001-02-03" / "fingerprint.json").write_text(json.dumps(same))
    said: list[str] = []

    def night(mark: dict[str, str], day: int) -> tuple[str, int]:
        sweep = _sweep_folder(home, mark, date(2001, 2, day), said.append)
        return sweep.name, len(list(sweep.glob("records/*")))

    assert night(other, 4) == ("2001-02-04", 0)
    assert night(same, 4) == ("2001-02-04.1", 2)
    assert night(same, 4) == ("2001-02-04.1", 2), "the same again goes on in its folder"
    assert night(same, 10) == ("2001-02-10", 2)
    table = home / "tables" / "fitted.toml"
    table.write_text(table.read_text() + "\n")
    assert night(same, 11) == ("2001-02-11", 0), "cells of a table that was edited are new"
    assert [line.partition(" with")[0] for line in said] == [
        "2 cells were recorded by 2001-02-03",
        "2 cells were recorded by 2001-02-04.1",
        "0 cells were recorded by 2001-02-10",
    ]


def test_worse_by_error_and_by_coverage_gives_exit_code_1_and_an_alert(home: Path) -> None:
    """Reference: one cell's baseline halved, the other's record put above its bound by hand."""
    path = home / "baseline.json"
    text = path.read_text()
    one, other = sorted(json.loads(text)["cells"].values(), key=lambda cell: cell["label"])
    text = text.replace('"worst_error_percent": 1.0', '"worst_error_percent": 0.5', 1)
    path.write_text(text)
    halved = next(c for c in json.loads(text)["cells"].values() if c["worst_error_percent"] == 0.5)
    spoilt = other if halved["label"] == one["label"] else one
    seed = int(spoilt["label"].rpartition("=")[2])
    spec = next(
        spec
        for spec in (home / "2001-02-03" / "specs").iterdir()
        if json.loads(spec.read_text())["workload"]["seed"] == seed
    )
    record = home / "2001-02-03" / "records" / f"{spec.stem}.a0.r0.jsonl"
    lines, _ = read_records(record)
    assert lines[2].observed is not None
    assert lines[2].planned is not None
    lines[2].observed.working_set_bytes = lines[2].planned.bound_bytes + 1
    write_records(record, lines)

    marks = home / "2001-02-03" / "wandb" / "tracked"
    marks.mkdir(parents=True)
    for cell in (home / "2001-02-03" / "specs").iterdir():
        (marks / f"{cell.stem}-0.offline").touch()

    done = now(home, tracker="offline")
    assert done.returncode == 1, done.stdout + done.stderr
    reasons = [
        f"{halved['label']}: worst error 1.00 %, in {halved['sweep']} 0.50 %",
        f"{spoilt['label']}: coverage 2 of 3 calls, in {spoilt['sweep']} 3 of 3",
    ]
    for reason in reasons:
        assert f"worse: {reason}" in done.stdout
    assert path.read_text() == text, "the baseline stays"
    verdict = json.loads((home / sweeps(home)[1] / "verdict.json").read_text())
    assert set(reasons) < set(verdict["reasons"])
    assert "W&B" not in done.stdout, "runs of cells taken over were written in their own night"
    (run,) = offline_runs(home)
    (alert,) = records(run, "alert")
    assert "is worse than its baseline" in alert["title"]
    assert all(reason in alert["text"] for reason in reasons)


def test_an_unreadable_baseline_starts_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: it is no first run, whose figures would be taken for good."""
    (home / "baseline.json").write_text("{")
    with pytest.raises(SystemExit) as left:
        main(["schedule", "nightly", "--now", "--out", str(home)])
    assert left.value.code == 2
    assert "cannot read the baseline" in capsys.readouterr().err
    assert sweeps(home) == ["2001-02-03"]


def test_two_at_once_do_not_collide_and_a_killed_one_is_recovered_from(tmp_path: Path) -> None:
    """Reference: EX_TEMPFAIL of sysexits.h; the ranks' own pids, which must be gone as well."""
    home = tmp_path / "nightly"
    running = subprocess.Popen(
        call("--now", "--out", str(home), entry="hangs"),
        stdout=subprocess.DEVNULL,
        env=environment(home),
        cwd=tmp_path,
    )
    try:
        until(lambda: any(p.read_text().endswith(".") for p in home.glob("20*/pid.0.0")))
        second = now(home)
        assert second.returncode == 75, second.stderr
        assert f"process {running.pid}, since" in second.stderr
    finally:
        running.kill()
        running.wait()
    (note,) = home.glob("20*/pid.0.0")
    pids = [int(pid) for pid in note.read_text().rstrip(".").split()]
    until(lambda: not any(is_alive(pid) for pid in pids))
    said: list[str] = []
    with hold(home / ".lease", lambda: None, said.append):
        assert f"took over the lease of {psutil.Process().username()}" in said[0]
    assert f"process {running.pid}" in said[0]


def test_the_entries_run_what_they_say(tmp_path: Path) -> None:
    """Reference: crontab(5), five fields then the command, in which a % is escaped; a shell."""
    done = subprocess.run(
        call("--out", "a %d", "--at", "03:07"),
        capture_output=True,
        text=True,
        check=True,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    lines = done.stdout.splitlines()
    slurm, cron = (line for line in lines if line.startswith("7 3 * * * "))
    assert lines[lines.index(slurm) - 1].startswith("#SCRON ")
    assert "%d" in slurm
    assert r"\%d" in cron
    command = slurm.removeprefix("7 3 * * * ")
    assert cron.replace(r"\%", "%").startswith(f"7 3 * * * {command} >>")
    helped = subprocess.run(
        ["sh", "-c", command.replace(" schedule ", " schedule --help ")],
        capture_output=True,
        text=True,
        check=True,
        env=environment(tmp_path),
    )
    assert "Usage" in helped.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["weekly"], "no study 'weekly'; conf/study has default"),
        (["nightly", "--at", "25:00"], "--at must be HH:MM"),
        (["nightly", "--now", "--out", "/dev/null/x"], "Not a directory: '/dev/null/x'"),
        (["nightly", "--", "out=elsewhere"], "out=elsewhere: a schedule sets out itself"),
        (["nightly", "--", "launcher.max_ranks=four"], "launcher.max_ranks must be an integer"),
        (["nightly", "--", "no_such=1"], "the overrides do not hold"),
        (["nightly", "--", "launcher=slurm", "launcher.wait=false"], "a schedule waits"),
        (["nightly", "--", "coefficients=a,b"], "a schedule compares under one table"),
    ],
)
def test_bad_input_gives_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: house rule 7, values and way out."""
    with pytest.raises(SystemExit) as left:
        main(["schedule", *arguments])
    assert left.value.code == 2
    assert message in capsys.readouterr().err
