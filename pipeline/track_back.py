"""From the tracker back: the records and specs that W&B runs carry, laid out as a sweep's folder.

`pipeline.track` puts them among a run's own files. An offline run folder is read where it lies; an
online project through wandb's public API. What comes out is what went in, byte for byte, so that a
fit on it is the fit on the records.
"""

import os
import re
import shutil
import tempfile

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.completion import RECORD_NAME
from planner.errors import PlannerError

SPEC_NAME = re.compile(r"[0-9a-f]{16}\.json")
FOLDERS = {"records": RECORD_NAME, "specs": SPEC_NAME}
ONLINE = "wandb:"
"""How an online source begins: ``wandb:entity/project``, or ``wandb:entity/project/group``."""


class TrackBackError(PlannerError):
    """Runs that no records can be taken from."""


class Taken(NamedTuple):
    """Runs that gave records, files written, and runs that carry none."""

    runs: int
    files: int
    without: tuple[str, ...]


def is_run_folder(path: Path) -> bool:
    """Whether a folder is a run that wandb keeps offline, or holds such."""
    return path.is_dir() and bool(_run_folders(path))


def take_offline(sources: Sequence[Path], out: Path) -> Taken:
    """Copy what offline runs carry into ``out``.

    Raises
    ------
    TrackBackError
        Where there is no run, none carries records, or two carry different ones of one name.
    """
    runs = [run for source in sources for run in _run_folders(source)]
    if not runs:
        raise TrackBackError(
            f"no offline run in {', '.join(map(str, sources))}; wandb names them offline-run-*"
        )
    return _take([(run.name, run / "files") for run in runs], out)


def take_online(source: str, out: Path) -> Taken:
    """Fetch what the runs of a project carry into ``out``: ``entity/project`` or with a group.

    The key and the server are wandb's own settings (``WANDB_API_KEY``, ``WANDB_BASE_URL``).

    Raises
    ------
    TrackBackError
        As `take_offline`, and where W&B cannot be asked.
    """
    import wandb

    entity, _, rest = source.removeprefix(ONLINE).partition("/")
    project, _, group = rest.partition("/")
    if not entity or not project:
        raise TrackBackError(
            f"{source!r} names no project; write {ONLINE}entity/project, or with a group of runs: "
            f"{ONLINE}entity/project/group"
        )
    with tempfile.TemporaryDirectory() as scratch:
        runs: list[tuple[str, Path]] = []
        try:
            api = wandb.Api()
            filters = {"group": group} if group else {}
            for run in api.runs(f"{entity}/{project}", filters=filters, lazy=True):
                folder = Path(scratch) / run.id
                runs.append((run.id, folder))
                for kind in FOLDERS:
                    for file in run.files(pattern=f"{kind}/%"):
                        if _is_ours(file.name):
                            file.download(root=str(folder), replace=True).close()
        except (wandb.Error, ValueError, OSError) as error:
            raise TrackBackError(
                f"W&B was asked for {entity}/{project} and gave no runs: "
                f"{type(error).__name__}: {error}; see `peakcast doctor` for key and network"
            ) from error
        if not runs:
            raise TrackBackError(
                f"{entity}/{project} has no run" + f" in group {group}" * bool(group)
            )
        return _take(runs, out)


def _run_folders(source: Path) -> list[Path]:
    """Return a run's folder itself, or those in a folder of runs or in a sweep's."""
    if any(source.glob("run-*.wandb")):
        return [source]
    found = [*source.glob("offline-run-*"), *source.glob("wandb/offline-run-*")]
    return sorted(path for path in found if path.is_dir())


def _is_ours(name: str) -> bool:
    """Whether a run's file is a record or a spec; names come from a server and are not trusted."""
    folder, _, file = name.partition("/")
    return folder in FOLDERS and FOLDERS[folder].fullmatch(file) is not None


def _carried(files: Path) -> Iterator[Path]:
    for kind in FOLDERS:
        for path in sorted((files / kind).glob("*")):
            if _is_ours(f"{kind}/{path.name}"):
                yield path


def _take(runs: Sequence[tuple[str, Path]], out: Path) -> Taken:
    """Copy the files of runs; the same cell may be in two, if it has the same records."""
    written = 0
    without: list[str] = []
    for name, files in runs:
        carried = list(_carried(files))
        if not any(path.parent.name == "records" for path in carried):
            without.append(name)
        for path in carried:
            there = out / path.parent.name / path.name
            if there.exists() and there.read_bytes() != path.read_bytes():
                raise TrackBackError(
                    f"run {name} has other content of {path.name} than lies in {out}; import one "
                    "group of runs at a time, each into a folder of its own"
                )
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there)
            written += 1
    if len(without) == len(runs):
        raise TrackBackError(
            f"none of {len(runs)} runs carries records; they were tracked by an earlier version, "
            "or not by peakcast: track the sweep again (delete <out>/wandb/tracked)"
        )
    return Taken(len(runs) - len(without), written, tuple(without))
