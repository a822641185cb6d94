"""Keep real memory snapshots and their figures: `python -m tests.emulated.snapshot_golden`.

Writes tests/golden/snapshots/NAME.pickle.gz and NAME.json, which the ordinary tests read. Paths in
their stacks are made relative; all else is what torch wrote. Needs the emulated device.
"""

import gzip
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "tests" / "golden" / "snapshots"
EXPANDABLE = "expandable_segments:True"
KEPT = {"pinned": "", "cut": "", "python": EXPANDABLE}
"""Cases of `snapshot_real`, and the allocator's settings."""


def written(folder: Path, names: Iterable[str], conf: str = "") -> None:
    """Have a process on the emulated device write cases of `snapshot_real` into a folder.

    Raises
    ------
    CalledProcessError
        When it fails; its error output is there.
    """
    subprocess.run(
        [HERE / "run", HERE / "snapshot_real.py", folder, *names],
        env={**os.environ, "PYTORCH_ALLOC_CONF": conf, "EMULATED_LAG": "1"},
        check=True,
    )


def _relative(value: Any) -> None:
    """Make the paths of all frames relative."""
    if isinstance(value, dict):
        if "filename" in value:
            path = value["filename"].removeprefix(f"{ROOT}/")
            value["filename"] = path.rpartition("/site-packages/")[2]
        for one in value.values():
            _relative(one)
    elif isinstance(value, list):
        for one in value:
            _relative(one)


def main() -> None:
    """Write the kept cases."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        for name, conf in KEPT.items():
            written(Path(made), [name], conf)
            whole = pickle.loads((Path(made) / f"{name}.pickle").read_bytes())
            _relative(whole)
            packed = gzip.compress(pickle.dumps(whole), mtime=0)
            (FOLDER / f"{name}.pickle.gz").write_bytes(packed)
            shutil.copy(Path(made) / f"{name}.json", FOLDER)


if __name__ == "__main__":
    main()
