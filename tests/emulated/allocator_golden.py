"""Record the real allocator's answers: `python -m tests.emulated.allocator_golden`.

Writes tests/golden/allocator/CASE.json.xz and full_scale.json.xz, with which the ordinary tests
hold the simulated allocator against PyTorch's where no CUDA build of it is. Needs the emulated
device.
"""

import json
import lzma
import sys
from pathlib import Path

from tests.emulated.allocator_settings import (
    CASES,
    FOLDER,
    TIMELINE,
    TIMELINE_CASES,
    lists,
    real_answers,
)
from tests.emulated.allocator_timeline import full_scale

COUNT, LENGTH, SEED = 16, 60, 40_000


def _write(path: Path, content: object) -> None:
    text = json.dumps(content, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def _answers() -> None:
    """Write one file a case."""
    for name, case in CASES.items():
        played = lists(case, count=COUNT, length=LENGTH, seed=SEED)
        told = real_answers(case, played)
        _write(FOLDER / f"{name}.json.xz", {"fraction": case.fraction, "lists": played, **told})
        sys.stdout.write(f"{name}: {COUNT} lists under torch {told['torch']}\n")


def _timeline() -> None:
    """Write a full-size rank's steps, and what they reserve under each of the settings."""
    steps, told = full_scale(), {}
    for conf, case in TIMELINE_CASES.items():
        answers = real_answers(case, [steps])
        (answer,) = answers.pop("answers")
        told[conf] = {**answers, "peak": answer["peak"], "last": answer["figures"][-1]}
        told[conf]["allocated_peak"] = max(figures[1] for figures in answer["figures"])
        sys.stdout.write(f"full scale, {conf or 'default'}: {answer['peak']} bytes reserved\n")
    _write(TIMELINE, {"steps": steps, "told": told})


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    _answers()
    _timeline()
