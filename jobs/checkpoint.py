"""The small checkpoint on disk: its name, whether it is whole, its routing. Standard library."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.text import corpus_hash
from planner.errors import require_int
from planner.model import Model

VERSION = 1
"""Raised when `jobs.pretrain` would make another checkpoint from the same arguments."""

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ROUTING = "routing.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: names the file, the tensor or key, and the way out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the small checkpoint is trained.

    Parameters
    ----------
    steps, requests, length
        Optimizer steps, requests in each, and tokens of a request.
    learning_rate
        Highest rate of AdamW; it rises over the first tenth of the steps, then falls to a tenth.
    seed
        Seed of the first weights and of the order of text.
    """

    steps: int = 100
    requests: int = 2
    length: int = 512
    learning_rate: float = 1.5e-3
    seed: int = 913

    def __post_init__(self) -> None:
        for name in ("steps", "requests"):
            require_int("Recipe", name, getattr(self, name))
        require_int("Recipe", "length", self.length, least=2)


def folder_name(model: Model, recipe: Recipe | None = None) -> str:
    """Name the folder of a checkpoint after all that decides its content.

    That is the architecture, the text, the recipe and the version of the training code.
    """
    identity = {
        "model": asdict(model),
        "recipe": asdict(recipe or Recipe()),
        "text": corpus_hash(),
        "version": VERSION,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return f"{model.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_complete(folder: Path) -> bool:
    """Whether the folder holds a checkpoint with its routing.

    `jobs.pretrain` renames a folder into place when it is whole, so its files are whole if there.
    """
    weights = (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()
    return weights and (folder / CONFIG).is_file() and (folder / ROUTING).is_file()


def digest(folder: Path) -> str:
    """Return the SHA-256 over names and contents of the checkpoint's files.

    Raises
    ------
    CheckpointError
        When there is no checkpoint in the folder.
    """
    files = sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")])
    if not any(file.suffix == ".safetensors" for file in files):
        raise CheckpointError(
            f"{folder} holds no *.safetensors; make a checkpoint with python -m jobs.pretrain"
        )
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.name} {content}\n".encode())
    return total.hexdigest()


def read_routing(folder: Path) -> list[list[float]]:
    """Return the measured share of each expert's routed rows, per layer; each layer sums to 1.

    Raises
    ------
    CheckpointError
        When ``routing.json`` is missing, torn, or does not hold shares.
    """
    path = folder / ROUTING
    way_out = "measure it again with python -m jobs.pretrain, or set weights.routing=balanced"
    try:
        shares = json.loads(path.read_text())["shares"]
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {way_out}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} holds no shares ({error!r}); {way_out}") from error
    if not isinstance(shares, list) or not shares:
        raise CheckpointError(f"{path}: shares must be a list, one entry per layer; {way_out}")
    for layer, row in enumerate(shares):
        good = isinstance(row, list) and row and all(isinstance(x, (int, float)) for x in row)
        if not good or min(row) < 0 or abs(sum(row) - 1) > 1e-6 or len(row) != len(shares[0]):
            raise CheckpointError(
                f"{path}: layer {layer} must hold one share per expert, none negative, summing to "
                f"1; got {str(row)[:80]}; {way_out}"
            )
    return [[float(x) for x in row] for row in shares]
