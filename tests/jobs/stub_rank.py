"""Ranks without a model: entry points for tests of the launcher, standard library only.

Each writes real records through `jobs.record`; numbers follow from rank and call alone, observed
1 % under expected.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs.record import Observed, Planned, RankRecord, record_path, write_records
from jobs.spec import CellSpec

MIB = 2**20


def record(spec: CellSpec, attempt: int, rank: int, call: int, outcome: str = "ok") -> RankRecord:
    """One call's record with plausible numbers."""
    expected = (100 + 10 * rank) * MIB
    growth = 3 * MIB if call == 0 and spec.topology.ep > 1 else 0
    held = 5 * MIB if call else 0
    terms = {"experts.fc2_outputs": expected // 2, "residual.stream": expected - expected // 2}
    seen = expected * 99 // 100
    return RankRecord(
        key=spec.key,
        label=spec.label,
        attempt=attempt,
        rank=rank,
        call=call,
        temperature="warm" if call else "cold",
        outcome=outcome,
        planned=Planned(
            expected_bytes=expected,
            bound_bytes=expected * 11 // 10,
            growth_bytes=growth,
            retained_bytes=20 * MIB,
            held_over_bytes=held,
            demand_bytes=expected * 11 // 10 + growth,
            decision={"verdict": "refuse" if outcome == "refused" else "admit", "children": 1},
            peak_moment="recompute",
            terms=terms,
            moments={"recompute": {"expected": expected, "bound": expected * 11 // 10}},
            unpriced=[],
            coefficients=spec.coefficients,
            local_tokens=512,
            routed_rows=[2048] * spec.model.num_layers,
        ),
        observed=None
        if outcome == "refused"
        else Observed(
            baseline_bytes=50 * MIB,
            peak_bytes=seen - held,
            working_set_bytes=seen,
            retained_bytes=20 * MIB,
            held_over_bytes=held,
            growth_bytes=growth,
            outside_bytes=3 * MIB if spec.topology.ep > 1 else 0,
            terms={"experts.fc2_outputs": seen // 2, "residual.stream": seen - seen // 2},
            unattributed_bytes=0,
            peak_at={"phase": "backward", "module": "layers.0.mlp", "op": "aten.mm"},
            routed_rows=[2048] * spec.model.num_layers,
            call_s=0.5,
            ledger_s=0.01,
        ),
        loss=None if outcome == "refused" else 5.5,
        error="the batch needs 110 MiB, the room is 10 MiB" if outcome == "refused" else None,
    )


def _run(
    spec_path: Path, out: Path, attempt: int, until: int | None = None
) -> tuple[CellSpec, int]:
    """Record calls as a rank would, rewriting the file after each; stop before call ``until``."""
    spec, rank = CellSpec.read(spec_path), int(os.environ["RANK"])
    records = []
    for call in spec.calls.recorded:
        if call == until:
            break
        records.append(record(spec, attempt, rank, call))
        write_records(record_path(out, spec.key, attempt, rank), records)
    return spec, rank


def ok(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Every call succeeds."""
    assert rendezvous.startswith(("file:///", "tcp://"))
    _run(spec_path, out, attempt)


def refused(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """The planner refuses the first call."""
    spec, rank = CellSpec.read(spec_path), int(os.environ["RANK"])
    refusal = record(spec, attempt, rank, spec.calls.recorded[0], "refused")
    write_records(record_path(out, spec.key, attempt, rank), [refusal])


def killed(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """The last of several ranks is killed in its second call; the others wait for ever."""
    spec, rank = _run(spec_path, out, attempt, until=1 if _world() > 1 else None)
    if _world() == 1:
        return
    if rank == spec.topology.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def killed_once(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """As `killed` in the first attempt, as `ok` afterwards."""
    (killed if attempt == 0 else ok)(spec_path, out, attempt, rendezvous)


def raises(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Rank 0 raises; the others wait for it for ever."""
    if int(os.environ["RANK"]) == 0:
        raise ValueError("the checkpoint lacks layers.1.mlp.router.weight")
    time.sleep(3600)


def leaves(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Rank 0 ends by ``os._exit(0)`` without a record; the others wait for it for ever."""
    if int(os.environ["RANK"]) == 0:
        os._exit(0)
    time.sleep(3600)


def starves(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Host memory runs out."""
    raise MemoryError("unable to allocate 8 GiB")


def chatters(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Print in every way there is; rank 0 then raises, the others are killed at once."""
    rank = os.environ["RANK"]
    sys.stdout.write(f"rank {rank} größer\n\udcff\n")
    subprocess.run(["echo", "a child's words"], check=True)
    os.write(2, b"raw \xff\xfe bytes\n")
    if rank == "0":
        raise ValueError("on purpose")
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Say who runs, then never end."""
    (out / f"pid.{attempt}.{os.environ['RANK']}").write_text(f"{os.getpid()} {os.getppid()}.")
    time.sleep(3600)


def _world() -> int:
    return int(os.environ["WORLD_SIZE"])
