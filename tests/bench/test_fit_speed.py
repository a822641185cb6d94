"""What a fit of a hundred thousand records costs: time and memory of the command."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.spec import CellSpec
from tests.conftest import GOLDEN

STUDY = GOLDEN / "default_study"
PROGRAM = """
import json, resource, sys, time
start = time.perf_counter()
from pipeline.cli import main
sys.argv = ["peakcast", "fit", sys.argv[1], "-o", sys.argv[2]]
try:
    main()
except SystemExit as end:
    assert not end.code, end
own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({
    "s": time.perf_counter() - start,
    "processor_s": own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime,
    "mb": max(own.ru_maxrss, others.ru_maxrss) // 1024,
}))
"""
MOST_MB = 2000


def write_sweep(out: Path, records: int) -> int:
    """Write the recorded study again and again, as a sweep over seeds would leave it."""
    for folder in ("records", "specs"):
        (out / folder).mkdir(parents=True)
    specs = {path.stem: CellSpec.read(path) for path in sorted(STUDY.glob("specs/*.json"))}
    files = [
        (path.name.partition("."), [json.loads(line) for line in path.open()])
        for path in sorted(STUDY.glob("records/*.jsonl"))
    ]
    written = seed = 0
    while written < records:
        seed += 1
        keys = {}
        for stem, spec in specs.items():
            other = replace(spec, workload=replace(spec.workload, seed=seed))
            keys[stem] = other.key
            other.write(out / "specs" / f"{other.key}.json")
        for (stem, _, rest), calls in files:
            again = [json.dumps(call | {"key": keys[stem]}) + "\n" for call in calls]
            (out / "records" / f"{keys[stem]}.{rest}").write_text("".join(again))
            written += len(again)
    return written


@pytest.mark.bench
@pytest.mark.parametrize("records", [1_000, 100_000])
def test_a_fit_of_many_records(tmp_path, records):
    """Reference: memory of a laptop; time is shown (aim: 100,000 in 10 s), not held."""
    count = write_sweep(tmp_path / "sweep", records)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "sweep"), str(tmp_path / "table.toml")],
        capture_output=True,
        text=True,
        check=True,
    )
    cost = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(
        f"fit of {count} records: {cost['s']:.1f} s (aim for 100,000: 10 s), "
        f"{cost['processor_s']:.1f} s of processors, {cost['mb']} MB\n"
    )
    assert cost["mb"] < MOST_MB
