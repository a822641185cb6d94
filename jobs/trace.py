"""Trace cells on fake ranks, moment by moment: ``python -m jobs.trace SPEC… --out FILE``.

Writes JSON, for each spec and its first rank: local tokens, and for each moment of a warm call the
layer at hand, live bytes of every ledger term and of what matched none.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from jobs.backend import fake
from jobs.rank import THREADS, pricer_of
from jobs.spec import CellSpec

CALLS = 2
"""A cold call, then the one that is traced: dispatchers then hold what they keep."""


def trace(spec: CellSpec) -> dict[str, Any]:
    """Run a cell's first rank and return its moments.

    Raises
    ------
    ValueError
        When the cell is not on the fake backend.
    """
    if spec.backend != "fake":
        raise ValueError(f"cells are traced on fake ranks; {spec.label} has {spec.backend}")
    rank = spec.ranks[0]
    with fake.start(rank, spec.topology):
        from jobs.fake_live import FakeLoop
        from jobs.live import RecordBase
        from jobs.meter.ledger import Ledger
        from jobs.meter.stages import stages
        from jobs.model.build import build_model, routed_rows

        model = build_model(spec)
        ledger = Ledger()
        ledger.attach(model)
        base = RecordBase(spec, 0, rank, {})
        loop = FakeLoop(spec, rank, model, pricer_of(spec), ledger, base)
        for call in range(CALLS):
            record = loop.call(call)
        assert record.planned is not None
        assert loop.seen is not None
        tokens = record.planned.local_tokens
        found = stages(loop.seen, spec.model, spec.step, tokens, spec.topology)
        rows = routed_rows(model)
    fake.stop()
    return {
        "spec": spec.to_dict(),
        "rank": rank,
        "tokens": tokens,
        "routed_rows": rows,
        "working_set_bytes": loop.seen.working_set_bytes,
        "moments": {
            str(moment): {
                "layer": stage.layer,
                "terms": stage.attribution.terms,
                "unattributed_bytes": stage.attribution.unattributed_bytes,
            }
            for moment, stage in found.items()
        },
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m jobs.trace", description=__doc__)
    parser.add_argument("specs", type=Path, nargs="+", help="cells, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    traces = [trace(CellSpec.read(path)) for path in arguments.specs]
    arguments.out.write_text(json.dumps(traces, indent=1) + "\n")


if __name__ == "__main__":
    main()
