"""The requests of a full-size rank: what its ledger has followed, as steps for an allocator."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jobs import fake_live, rank
from jobs.allocator.steps import Ask

CELL = (
    "study=full_scale",
    "study.beside=[]",
    "coefficients=art-traced",
    "weights=planned",
    "topology=ep2_cp2",
    "model.num_layers=8",
    "meter.ranks=[0]",
)
"""Qwen3.6-35B-A3B's geometry with eight layers, rank 0 of four, two calls of the published size."""


def full_scale() -> list[list[Any]]:
    """Return the steps of both calls of `CELL`, with the weights before them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipeline", *CELL, f"out={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        (spec,) = (Path(folder) / "specs").glob("*.json")
        taken: list[Any] = []
        served = fake_live.replay

        def keep(steps: Any, *settings: Any) -> Any:
            taken[:] = steps
            return served(taken, *settings)

        with patch.object(fake_live, "replay", keep):
            rank.main(spec, Path(folder), 1, f"file://{folder}/rendezvous")
    names: dict[Any, int] = {}
    return [
        ["ask", names.setdefault(step.key, len(names)), step.nbytes, 0, None]
        if isinstance(step, Ask)
        else ["end", names[step.key]]
        for step in taken
    ]
