"""Record the real allocator's answers: `python -m tests.emulated.allocator_golden`.

Writes tests/golden/allocator/CASE.json.xz, with which the ordinary tests hold the simulated
allocator against PyTorch's where no CUDA build of it is. Needs the emulated device.
"""

import json
import lzma
import sys
from pathlib import Path

from tests.emulated.allocator_settings import CASES, lists, real_answers

FOLDER = Path(__file__).parents[1] / "golden" / "allocator"
COUNT, LENGTH, SEED = 16, 60, 40_000


def main() -> None:
    """Write one file a case."""
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        played = lists(case, count=COUNT, length=LENGTH, seed=SEED)
        told = real_answers(case, played)
        text = json.dumps(
            {"fraction": case.fraction, "lists": played, **told}, separators=(",", ":")
        )
        (FOLDER / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
        sys.stdout.write(f"{name}: {COUNT} lists under torch {told['torch']}\n")


if __name__ == "__main__":
    main()
