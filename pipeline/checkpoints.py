"""The pretrained weights of a sweep: found, or made once, and named by their content."""

import fcntl
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from jobs.checkpoint import CheckpointError, digest, folder_name, is_complete, read_routing
from jobs.launch import run_module
from jobs.spec import CellSpec
from planner.errors import ConfigError
from planner.model import Model
from planner.routing import Routing


def home(model: Model) -> Path:
    """Where the project's own checkpoint of ``model`` lies, in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache.absolute() / "peakcast" / "checkpoints" / folder_name(model)


def prepare(cells: Sequence[CellSpec], say: Callable[[str], None]) -> list[CellSpec]:
    """Make the checkpoints that are missing and put each one's digest in its cells.

    Raises
    ------
    ConfigError
        When a folder given by the user holds no checkpoint, or training one failed.
    """
    digests: dict[str, str] = {}
    for cell in cells:
        path = cell.weights.path
        if cell.weights.kind != "pretrained" or path is None or path in digests:
            continue
        folder = Path(path)
        if not is_complete(folder):
            if folder != home(cell.model):
                raise ConfigError(
                    f"weights.path = {folder} holds no whole checkpoint; it needs config.json, "
                    "*.safetensors and routing.json (python -m jobs.pretrain makes one), or set "
                    "weights.path=null for the project's own"
                )
            _train(cell.model, folder, say)
        digests[path] = digest(folder)
    return [
        replace(c, weights=replace(c.weights, digest=digests[c.weights.path]))
        if c.weights.path in digests
        else c
        for c in cells
    ]


def _train(model: Model, folder: Path, say: Callable[[str], None]) -> None:
    """Train a checkpoint into ``folder``; of several processes one does, the others wait for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(folder):
            return
        say(f"training the small {model.name} checkpoint (once; kept in {folder})")
        model_file = folder.with_suffix(".model.json")
        model_file.write_text(json.dumps(asdict(model)))
        code = run_module("jobs.pretrain", "--model", str(model_file), "--out", str(folder))
        if code or not is_complete(folder):
            raise ConfigError(
                f"python -m jobs.pretrain --model {model_file} --out {folder} ended with code "
                f"{code} and no checkpoint; see its output above, or sweep weights=random"
            )


def routing_of(cell: CellSpec) -> Routing:
    """Return what is known of a cell's routing: balanced, or as measured beside its weights.

    Raises
    ------
    ConfigError
        When ``routing.json`` is missing or unreadable.
    """
    if cell.weights.routing != "measured" or cell.weights.path is None:
        return Routing.balanced()
    try:
        return Routing.measured(read_routing(Path(cell.weights.path)))
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
