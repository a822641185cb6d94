"""Settings under which the allocators are compared, and the real one's answers under them."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.allocator.rules import MIB
from tests.jobs.allocator_answers import random_list

HERE = Path(__file__).parent
FOLDER = HERE.parent / "golden" / "allocator"
TIMELINE = FOLDER / "full_scale.json.xz"
"""A full-size rank's requests."""

GIB = 1024 * MIB


@dataclass(frozen=True)
class Case:
    """What a process is told: its settings, its part of the device, and the device's memory.

    Parameters
    ----------
    conf
        ``PYTORCH_ALLOC_CONF``.
    fraction
        ``set_per_process_memory_fraction``.
    device_bytes
        Memory of the emulated device: a full H200's, or little enough for lists to fill it.
    """

    conf: str = ""
    fraction: float = 1.0
    device_bytes: int = 2 * GIB

    @property
    def most(self) -> int:
        """Largest request."""
        return 400 * MIB if self.device_bytes < 10 * GIB else 20 * GIB

    @property
    def private(self) -> bool:
        """Whether private pools may be used.

        With expandable segments torch 2.14 counts their segments wrongly and fails an assertion
        of its own (``cudaMalloc_count > 0``) as they are emptied.
        """
        return "expandable" not in self.conf


CASES = {
    "default": Case(device_bytes=141 * GIB),
    "full": Case(),
    "limited": Case(fraction=0.5),
    "expandable": Case("expandable_segments:True", device_bytes=141 * GIB),
    "expandable_full": Case("expandable_segments:True"),
    "expandable_limited": Case("expandable_segments:True", 0.5),
    "split": Case("max_split_size_mb:64"),
    "split_expandable": Case("max_split_size_mb:64,expandable_segments:True"),
    "collected": Case("garbage_collection_threshold:0.5", 0.6),
    "collected_expandable": Case("garbage_collection_threshold:0.5,expandable_segments:True", 0.6),
    "collected_split": Case("garbage_collection_threshold:0.4,max_split_size_mb:40", 0.6),
    "larger": Case("max_split_size_mb:64,large_segment_size_mb:40,max_non_split_rounding_mb:60"),
    "larger_expandable": Case("expandable_segments:True,large_segment_size_mb:32"),
    "rounded": Case("roundup_power2_divisions:4", device_bytes=141 * GIB),
    "rounded_list": Case("roundup_power2_divisions:[1:2,16:4,256:8,>:1]"),
}

TIMELINE_CASES = {
    conf: Case(conf, device_bytes=141 * GIB)
    for conf in ("", "expandable_segments:True", "max_split_size_mb:512")
}
"""What the full-size rank's requests are served under, by the settings."""


def lists(case: Case, *, count: int, length: int, seed: int) -> list[list[Any]]:
    """Return random lists of steps for a case."""
    return [
        random_list(seed + number, length, case.most, private=case.private)
        for number in range(count)
    ]


def real_answers(case: Case, played: list[list[Any]]) -> dict[str, Any]:
    """Play lists on PyTorch's allocator, in a process of its own on the emulated device.

    Raises
    ------
    RuntimeError
        When the process fails; its error output is the message.
    """
    emulated = {"EMULATED_LAG": "1", "EMULATED_BYTES": str(case.device_bytes)}
    done = subprocess.run(
        [HERE / "run", HERE / "allocator_real.py"],
        input=json.dumps({"fraction": case.fraction, "lists": played}),
        env={**os.environ, "PYTORCH_ALLOC_CONF": case.conf, **emulated},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout)
