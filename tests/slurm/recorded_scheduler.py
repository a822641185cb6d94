"""A Slurm that was written down: answers sbatch, squeue and their like, and runs nothing.

Its arrays wait at the first look, run at the second, are half done at the third and done at the
fourth; the records that their ranks would leave are written when they are submitted. A file named
as one of `MOODS` beside the commands makes it behave otherwise.
"""

import json
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun")
MAX_ARRAY_SIZE = 1001

MOODS = {
    "stuck": "every job waits for ever, for resources",
    "silent": "squeue does not reach its controller",
    "forgetful": "no job is known any more, and nothing was recorded",
    "full": "sbatch takes nothing, whenever it is asked",
    "busy": "sbatch takes nothing for the moment, once",
    "deaf": "sbatch takes the array but its answer is lost, once",
}


def install(folder: Path, mood: str = "") -> Path:
    """Make a folder of commands that lead here, which keep their state in it; return it."""
    folder.mkdir()
    for name in COMMANDS:
        command = folder / name
        leads = f'exec "{sys.executable}" "{__file__}" "{folder}" {name} "$@"'
        command.write_text(f"#!/bin/sh\n{leads}\n")
        command.chmod(stat.S_IRWXU)
    if mood:
        assert mood in MOODS
        (folder / mood).touch()
    return folder


def main(state: Path, command: str, *arguments: str) -> None:
    """Answer one command."""
    with (state / "asked").open("a") as asked:
        asked.write(f"{command} {' '.join(arguments)}\n")
    if command == "sbatch":
        _submit(state, Path(arguments[0]))
    elif command == "squeue":
        _look(state, arguments)
    elif command == "scontrol":
        sys.stdout.write(f"MaxArraySize = {MAX_ARRAY_SIZE}\n")
    elif command == "scancel":
        (state / "cancelled").touch()
    elif command == "sacct":
        sys.exit("Slurm accounting storage is disabled")


def _submit(state: Path, script: Path) -> None:
    """Take an array, and record what its cells would."""
    if _once(state, "busy") or (state / "full").exists():
        sys.exit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    text = script.read_text()
    last = int(re.search(r"--array=0-(\d+)%", text)[1])
    name = re.search(r"--job-name=(\S+)", text)[1]
    number = len(list(state.glob("*.job"))) + 1
    (state / f"{number}.job").write_text(json.dumps({"name": name, "cells": last + 1, "looks": 0}))
    if not any((state / mood).exists() for mood in ("stuck", "silent", "forgetful")):
        batch = json.loads((script.parent / "batch.json").read_text())
        _record(script.parent.parent.parent, batch)
    if _once(state, "deaf"):
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv")
    sys.stdout.write(f"Submitted batch job {number}\n")


def _once(state: Path, mood: str) -> bool:
    """Whether the mood holds; it is over then."""
    if not (state / mood).exists():
        return False
    (state / mood).unlink()
    return True


def _record(out: Path, batch: dict[str, list[dict[str, object]]]) -> None:
    """Write the records of every cell: those of the first, under the others' names."""
    from stub_rank import record

    from jobs.record import record_path, write_records
    from jobs.spec import CellSpec

    spec = CellSpec.read(out / "specs" / f"{batch['cells'][0]['key']}.json")
    records = [record(spec, 0, 0, call) for call in spec.calls.recorded]
    for cell in batch["cells"]:
        key, attempt = str(cell["key"]), int(str(cell["attempt"]))
        of_cell = [replace(one, key=key, attempt=attempt) for one in records]
        write_records(record_path(out, key, attempt, 0), of_cell)


def _look(state: Path, arguments: tuple[str, ...]) -> None:
    """Show the arrays of the names asked for, each task on its line."""
    if (state / "silent").exists():
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    if (state / "forgetful").exists():
        return
    names = arguments[arguments.index("--name") + 1].split(",")
    for path in sorted(state.glob("*.job")):
        job = json.loads(path.read_text())
        if job["name"] not in names:
            continue
        job["looks"] += 1
        path.write_text(json.dumps(job))
        for index in range(job["cells"]):
            reached = _stage(state, job, index)
            sys.stdout.write(f"{path.stem}_{index}|{reached}|0|n1|Resources|{job['name']}|\n")


def _stage(state: Path, job: dict[str, int], index: int) -> str:
    if (state / "cancelled").exists():
        return "CANCELLED"
    if (state / "stuck").exists():
        return "PENDING"
    half = "COMPLETED" if index < job["cells"] / 2 else "RUNNING"
    stages = ("PENDING", "RUNNING", half, "COMPLETED")
    return stages[min(job["looks"], len(stages)) - 1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
