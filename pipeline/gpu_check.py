"""Hold prices against a CUDA device: ``python -m pipeline.gpu_check [OVERRIDES | --read OUT]``.

Runs ``study=h200_single``, or reads what it has left in OUT, and compares, call by call, the
planner's expected bytes and its bound with what the ledger and PyTorch's allocator saw. Exit code:
0 all calls within the limits, 1 one is not, or a cell failed or is missing, 2 bad input, 3 no CUDA
device, 130 interrupted.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jobs.launch import run_module
from pipeline.asked import forget_asked, read_asked
from pipeline.cut_short import told
from pipeline.gpu_row import NEAR, Row, rows
from pipeline.gpu_table import show
from pipeline.progress import make_console
from pipeline.store import Store, labels, read_store

PASSED, MISSED, BAD_INPUT, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130
STUDY = "h200_single"


def verdict(store: Store, found: Sequence[Row], missing: Sequence[Path] = ()) -> tuple[int, str]:
    """Return the exit code and the sentence that goes with it.

    Parameters
    ----------
    missing
        Spec files of cells that were asked for and left no record.
    """
    failed = [f"no record: python -m jobs.rank {path} {store.out} makes it" for path in missing]
    named = labels(store)
    failed += [
        "; ".join(filter(None, (f"{cell.outcome}: {named[cell.key]}: {cell.error}", told(cell))))
        for cell in store.cells
        if cell.outcome != "ok"
    ]
    missed = [row for row in found if row.misses]
    if failed or not found:
        return MISSED, "\n".join(failed) or "no call left a record of a CUDA device"
    if missed:
        return MISSED, f"{len(missed)} of {len(found)} calls are outside the limits"
    near = f"{100 * NEAR:g} %"
    return PASSED, f"{len(found)} calls: within {near} of expected, none above its bound"


def main(overrides: Sequence[str]) -> int:
    """Look for a device, run the study, compare; return the exit code."""
    console = make_console()
    if overrides[:1] == ["--read"]:
        if len(overrides) != 2 or not Path(overrides[1], "records").is_dir():
            _say(console, "--read takes one folder of a sweep, which has records in it", "red")
            return BAD_INPUT
        return compare(console, Path(overrides[1]))
    device = subprocess.run(
        [sys.executable, "-m", "jobs.cuda.devices"], capture_output=True, text=True, check=False
    )
    if device.returncode == NO_DEVICE:
        _say(console, f"no CUDA device here: {device.stdout.strip()}")
        return NO_DEVICE
    if device.returncode:
        _say(console, device.stderr.strip(), "red")
        return BAD_INPUT
    _say(console, device.stdout.strip())
    given = [one.removeprefix("out=") for one in overrides if one.startswith("out=")]
    out = Path(given[-1] if given else f"outputs/{STUDY}")
    forget_asked(out)
    try:
        code = run_module("pipeline", f"study={STUDY}", f"out={out}", *overrides)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if read_asked(out):
        return compare(console, out)
    if code != BAD_INPUT:
        _say(console, "the study did not come to its end; what was recorded stays", "red")
    return code or MISSED


def compare(console: Console, out: Path) -> int:
    """Print the tables of the records under ``out``; return the exit code.

    Where a sweep has left them, they are those of its last command: the folder may hold others.
    """
    store, asked = read_store(out), read_asked(out)
    if asked:
        store = store.only(asked)
    found = list(rows(store))
    show(console, found)
    there = {cell.key for cell in store.cells}
    specs = sorted((out / "specs").glob("*.json"))
    missing = [p for p in specs if p.stem not in there and (not asked or p.stem in asked)]
    code, words = verdict(store, found, missing)
    _say(console, words, "" if code == PASSED else "red")
    return code


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style, soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
