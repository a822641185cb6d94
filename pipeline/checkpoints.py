"""What cells read before they run: a small checkpoint, measured routing; made once, by content."""

import fcntl
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from jobs import routing_file
from jobs.checkpoint import CheckpointError, digest, folder_name, is_complete
from jobs.launch import run_module
from jobs.routing_file import census_name, is_measured, routing_digest
from jobs.spec import CellSpec
from planner.errors import ConfigError
from planner.model import Model
from planner.routing import Routing


@dataclass(frozen=True, slots=True)
class Made:
    """A folder that the project makes once, in the user's cache.

    Parameters
    ----------
    module, arguments
        The command that makes it: ``python -m module --model FILE --out FOLDER *arguments``.
    doing
        What it does, for people.
    is_whole, digest_of
        Whether a folder holds all of it, and the hash of its content.
    needs
        What a folder that the user names must hold instead.
    """

    folder: Path
    module: str
    arguments: tuple[str, ...]
    doing: str
    is_whole: Callable[[Path], bool]
    digest_of: Callable[[Path], str]
    needs: str


def made_for(model: Model, kind: str, seed: int) -> Made:
    """Return what cells with these weights read: a small checkpoint, or random weights' routing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "peakcast"
    if kind == "pretrained":
        return Made(
            folder=cache / "checkpoints" / folder_name(model),
            module="jobs.pretrain",
            arguments=(),
            doing=f"training the small {model.name} checkpoint",
            is_whole=is_complete,
            digest_of=digest,
            needs="config.json, *.safetensors and routing.json",
        )
    return Made(
        folder=cache / "routing" / census_name(model, seed),
        module="jobs.census",
        arguments=("--seed", str(seed)),
        doing=f"measuring how random weights of {model.name} route",
        is_whole=is_measured,
        digest_of=routing_digest,
        needs="routing.json",
    )


def prepare(cells: Sequence[CellSpec], say: Callable[[str], None]) -> list[CellSpec]:
    """Make what is missing in the cache and put each folder's digest in its cells.

    Raises
    ------
    ConfigError
        When a folder given by the user does not hold what it must, or making one failed.
    """
    digests: dict[str, str] = {}
    for cell in cells:
        path = cell.weights.path
        if path is None or path in digests:
            continue
        made = made_for(cell.model, cell.weights.kind, cell.weights.seed)
        if not made.is_whole(Path(path)):
            if Path(path) != made.folder:
                raise ConfigError(
                    f"weights.path = {path} is not whole; it needs {made.needs} "
                    f"(python -m {made.module} makes one), or set weights.path=null for the "
                    "project's own"
                )
            _make(cell.model, made, say)
        digests[path] = made.digest_of(Path(path))
    return [
        replace(c, weights=replace(c.weights, digest=digests[c.weights.path]))
        if c.weights.path in digests
        else c
        for c in cells
    ]


def _make(model: Model, made: Made, say: Callable[[str], None]) -> None:
    """Fill a folder of the cache; of several processes one does, the others wait for it."""
    made.folder.parent.mkdir(parents=True, exist_ok=True)
    with made.folder.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {made.folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if made.is_whole(made.folder):
            return
        say(f"{made.doing} (once; kept in {made.folder})")
        model_file = made.folder.with_suffix(".model.json")
        model_file.write_text(json.dumps(asdict(model)))
        files = ("--model", str(model_file), "--out", str(made.folder))
        code = run_module(made.module, *files, *made.arguments)
        if code or not made.is_whole(made.folder):
            command = " ".join(("python -m", made.module, *files, *made.arguments))
            raise ConfigError(
                f"{command} ended with code {code} and left nothing to use; see its output above"
            )


def routing_of(cell: CellSpec) -> Routing:
    """Return what is known of a cell's routing (`jobs.routing_file.routing_of`).

    Raises
    ------
    ConfigError
        When ``routing.json`` is missing or unreadable, or no routing has the imbalance asked for.
    """
    try:
        return routing_file.routing_of(cell)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
