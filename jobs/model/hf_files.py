"""Read and write Hugging Face Qwen3-MoE checkpoints; a rank reads its own experts only."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from jobs.checkpoint import CONFIG, INDEX, WEIGHTS, CheckpointError
from jobs.model.hf_layout import Piece, config, pieces
from jobs.model.names import global_parameters
from planner.model import Model

FLOATS = ("F32", "BF16", "F16")


def load_pretrained(model: torch.nn.Module, shape: Model, folder: Path) -> None:
    """Fill every parameter but the adapters from ``folder``, in the model's dtype.

    Names, shapes and dtypes are checked of the whole checkpoint, from the files' headers, before a
    value is read; values are read of this rank's experts only.

    Raises
    ------
    CheckpointError
        For a missing, unexpected, doubled or wrongly shaped tensor, for a config.json that
        disagrees with ``shape``, and for files that cannot be read: names what, where and the way
        out.
    """
    check_config(shape, folder)
    where = _locate(folder)
    expected = {piece.name: piece for piece in pieces(shape)}
    _check_names(expected, where, folder)
    _check_tensors(expected, where)
    targets = _targets(model)
    wanted: dict[Path, list[Piece]] = {}
    for piece in expected.values():
        if (piece.parameter, piece.expert) in targets:
            wanted.setdefault(where[piece.name], []).append(piece)
    with torch.no_grad():
        for path, found in wanted.items():
            with safe_open(path, framework="pt") as file:
                for piece in found:
                    target = targets[piece.parameter, piece.expert]
                    _fill(target, piece.rows, file.get_tensor(piece.name))


def save_pretrained(model: torch.nn.Module, shape: Model, folder: Path) -> None:
    """Write the weights, adapters left out, from one rank that holds all experts.

    Raises
    ------
    CheckpointError
        When this rank holds a part of the experts only.
    """
    targets = _targets(model)
    tensors: dict[str, Tensor] = {}
    for piece in pieces(shape):
        if (piece.parameter, piece.expert) not in targets:
            raise CheckpointError(
                f"this rank does not hold {piece.name}; save from a topology with ep = 1"
            )
        whole = targets[piece.parameter, piece.expert]
        parts = [whole] if piece.rows is None else [whole[rows] for rows in piece.rows]
        tensors[piece.name] = torch.cat(parts).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    described = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "torch_dtype": dtype,
        **config(shape),
    }
    (folder / CONFIG).write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


def check_config(shape: Model, folder: Path) -> None:
    """Check that config.json describes ``shape``.

    Raises
    ------
    CheckpointError
        Naming each key that disagrees, with both values.
    """
    found = _read_json(folder / CONFIG)
    wrong = [
        f"{key} is {found.get(key)!r}, the model's is {value!r}"
        for key, value in config(shape).items()
        if found.get(key, 0 if key == "shared_expert_intermediate_size" else None) != value
    ]
    if wrong:
        raise CheckpointError(
            f"{folder / CONFIG} disagrees with model {shape.name}: {'; '.join(wrong)}; "
            "choose the model that the checkpoint was made for, or another checkpoint"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} does not exist; give the folder of a checkpoint in Hugging Face layout"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is not JSON ({error}); fetch the checkpoint again"
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold a JSON object; fetch the checkpoint again")
    return found


def _locate(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor, from the files' headers; an index must agree with them."""
    index = folder / INDEX
    if index.is_file():
        listed = _read_json(index).get("weight_map")
        if not isinstance(listed, dict):
            raise CheckpointError(f"{index} has no weight_map; fetch the checkpoint again")
        files = sorted({folder / str(name) for name in listed.values()})
    else:
        listed, files = None, [folder / WEIGHTS]
    where: dict[str, Path] = {}
    for path in files:
        for name in _header(path):
            if name in where:
                raise CheckpointError(
                    f"{name} is in both {where[name]} and {path}; remove one of the files"
                )
            where[name] = path
    if listed is not None and listed != {name: path.name for name, path in where.items()}:
        off = sorted({name for name in {*listed, *where} if listed.get(name) != _name(where, name)})
        raise CheckpointError(
            f"{index} disagrees with the files about {_some(off)}; fetch the checkpoint again"
        )
    return where


def _name(where: dict[str, Path], name: str) -> str | None:
    return where[name].name if name in where else None


def _header(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; fetch the checkpoint again") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch it again") from error


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _check_names(expected: dict[str, Piece], where: dict[str, Path], folder: Path) -> None:
    missing = sorted(set(expected) - set(where))
    if missing:
        raise CheckpointError(
            f"{folder} lacks {_some(missing)}; the model needs every tensor: "
            "fetch the checkpoint again or choose the model that it was made for"
        )
    unexpected = sorted(set(where) - set(expected))
    if unexpected:
        raise CheckpointError(
            f"{where[unexpected[0]]} holds {_some(unexpected)}, for which the model has no place: "
            "choose the model that the checkpoint was made for"
        )


def _check_tensors(expected: dict[str, Piece], where: dict[str, Path]) -> None:
    for path in sorted(set(where.values())):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                header = file.get_slice(name)
                shape = tuple(header.get_shape())
                if shape != expected[name].shape:
                    raise CheckpointError(
                        f"{path}: {name} has shape {shape}, the model's is "
                        f"{expected[name].shape}; choose the model that the checkpoint was made for"
                    )
                if header.get_dtype() not in FLOATS:
                    raise CheckpointError(
                        f"{path}: {name} is {header.get_dtype()}; only {', '.join(FLOATS)} are read"
                    )


def _targets(model: torch.nn.Module) -> dict[tuple[str, int | None], Tensor]:
    """Return this rank's parameters by name and global expert; adapters are not in checkpoints."""
    targets: dict[tuple[str, int | None], Tensor] = {}
    for named in global_parameters(model):
        if ".lora_" in named.name:
            continue
        if named.local_expert is None:
            targets[named.name, None] = named.data
        else:
            name, _, expert = named.name.rpartition(".")
            targets[name, int(expert)] = named.data
    return targets


def _fill(target: Tensor, rows: tuple[slice, ...] | None, values: Tensor) -> None:
    if rows is None:
        target.copy_(values)
        return
    start = 0
    for run in rows:
        size = run.stop - run.start
        target[run].copy_(values[start : start + size])
        start += size
