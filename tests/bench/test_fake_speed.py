"""What a full-size cell costs without a device: time and memory of one process."""

import json
import subprocess
import sys

import pytest

from jobs.cell_parts import Calls, Meter, Weights, Workload
from jobs.spec import CellSpec
from planner.step import Step
from planner.topology import Topology
from tests.conftest import qwen

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
import torch
from jobs.backend import cpu
cpu.install()
import jobs.fake_live, jobs.rank, jobs.meter.ledger
spec, out = map(Path, sys.argv[1:])
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
imported, start = memory(), time.process_time()
jobs.rank.main(spec, out, 0, "")
print(json.dumps({"s": time.process_time() - start, "mb": memory(), "imported_mb": imported}))
"""
MOST_MB = 600
EP2, EP64 = Topology(cp=2, ep=2), Topology(dp=8, cp=8, ep=64)


@pytest.mark.bench
@pytest.mark.parametrize(
    ("layers", "topology", "target"),
    [(8, EP2, "6 s"), (8, EP64, "that of EP2"), (40, EP2, "25 s")],
    ids=["8 layers, EP2", "8 layers, EP64", "40 layers, EP2"],
)
def test_a_full_size_cell(tmp_path, layers, topology, target):
    """Reference: a cold and a warm call within the memory of a laptop; time is shown, not held.

    Qwen3.6-35B-A3B, 97,376 tokens a rank, every allocation followed; after imports, one core.
    """
    spec = CellSpec(
        model=qwen(num_layers=layers),
        topology=topology,
        topology_name="bench",
        step=Step(nvlink_ranks=64),  # one NVLink domain, as the HybridEP reference has
        weights=Weights(name="even"),
        workload=Workload(name="bench", requests=(97_376 * topology.cp,) * topology.dp),
        calls=Calls(name="pair", measured=2),
        meter=Meter(allow_unpriced=True, ranks=(0,)),
        backend="fake",
    )
    path = tmp_path / "spec.json"
    spec.write(path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(
        f"\nfake cell, {layers} layers, ep {topology.ep}: {seen['s']:.1f} s of CPU "
        f"(target {target}), {seen['mb']} MB (imports alone {seen['imported_mb']} MB)\n"
    )
    assert seen["mb"] <= MOST_MB
