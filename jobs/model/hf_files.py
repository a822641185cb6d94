"""Read and write Hugging Face checkpoints, tensor by tensor; a rank reads its own experts only."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from jobs.checkpoint import CONFIG, INDEX, WEIGHTS, CheckpointError
from jobs.model.hf_layout import Layout, Piece
from jobs.model.hf_qwen3 import QWEN3
from jobs.model.hf_qwen36 import QWEN36
from jobs.model.names import global_parameters
from planner.model import Model

FLOATS = ("F32", "BF16", "F16")

LAYOUTS: dict[str, Layout] = {
    QWEN3.model_type: QWEN3,
    QWEN36.model_type: QWEN36,
    f"{QWEN36.model_type}_text": QWEN36,
}
"""By the ``model_type`` of config.json."""


def load_pretrained(model: torch.nn.Module, shape: Model, folder: Path) -> None:
    """Fill every parameter but the adapters from ``folder``, in the model's dtype.

    Names, shapes and dtypes are checked of the whole checkpoint, from the files' headers, before a
    value is read; values are read of this rank's experts only, one tensor at a time, so that beside
    the model no more than one is held.

    Raises
    ------
    CheckpointError
        For a missing, unexpected, doubled or wrongly shaped tensor, for a config.json that
        disagrees with ``shape``, and for files that cannot be read: names what, where and the way
        out.
    """
    layout = check_config(shape, folder)
    found = _locate(folder)
    where = {name: path for name, path in found.items() if not name.startswith(layout.ignored)}
    pieces = list(layout.pieces(shape, where))
    expected = {piece.name: piece for piece in pieces}
    _check_names(expected, where, folder)
    _check_tensors(expected, where)
    targets = _targets(model)
    wanted: dict[Path, list[Piece]] = {}
    for piece in pieces:
        if (piece.parameter, piece.expert) in targets:
            wanted.setdefault(where[piece.name], []).append(piece)
    with torch.no_grad():
        for path, found in wanted.items():
            with safe_open(path, framework="pt") as file:
                for piece in found:
                    target = targets[piece.parameter, piece.expert]
                    _fill(target, piece.rows, _values(file, piece))


def save_pretrained(model: torch.nn.Module, shape: Model, folder: Path) -> None:
    """Write the weights, adapters left out, from one rank that holds all experts.

    Raises
    ------
    CheckpointError
        When this rank holds a part of the experts only.
    """
    layout = layout_for(shape)
    targets = _targets(model)
    parts: dict[str, list[Tensor]] = {}
    for piece in layout.pieces(shape, ()):
        if (piece.parameter, piece.expert) not in targets:
            raise CheckpointError(
                f"this rank does not hold {piece.name}; save from a topology with ep = 1"
            )
        whole = targets[piece.parameter, piece.expert]
        runs = [whole] if piece.rows is None else [whole[rows] for rows in piece.rows]
        parts.setdefault(piece.name, []).append(torch.cat(runs) - piece.offset)
    tensors = {
        piece.name: torch.stack(parts[piece.name])
        if piece.part is not None
        else parts[piece.name][0].contiguous()
        for piece in layout.pieces(shape, ())
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    described = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
        "torch_dtype": dtype,
        **layout.config(shape),
    }
    (folder / CONFIG).write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


def layout_for(shape: Model) -> Layout:
    """Return the layout in which a model's checkpoint is written."""
    mixed = shape.num_linear_attention_layers or shape.gated_attention
    return QWEN36 if mixed else QWEN3


def check_config(shape: Model, folder: Path) -> Layout:
    """Check that config.json describes ``shape``; return the checkpoint's layout.

    Raises
    ------
    CheckpointError
        For a layout that is not known here, naming those that are; and naming each key that
        disagrees, with both values.
    """
    found = _read_json(folder / CONFIG)
    kind = found.get("model_type", QWEN3.model_type)
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise CheckpointError(
            f"{folder / CONFIG} has model_type {kind!r}, whose layout is not known here; "
            f"known: {', '.join(LAYOUTS)}"
        )
    if found.get("quantization_config"):
        raise CheckpointError(
            f"{folder / CONFIG} says that the weights are quantized; only {', '.join(FLOATS)} are "
            "read: fetch the checkpoint that they were made from"
        )
    layout = LAYOUTS[kind]
    described = layout.described(found)
    wrong = [
        f"{key} is {described.get(key)!r}, the model's is {value!r}"
        for key, value in layout.config(shape).items()
        if described.get(key) != value
    ]
    if wrong:
        raise CheckpointError(
            f"{folder / CONFIG} disagrees with model {shape.name}: {'; '.join(wrong)}; "
            "choose the model that the checkpoint was made for, or another checkpoint"
        )
    return layout


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
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch it again") from error
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
        parts = sorted(folder.glob("*.safetensors"))
        if parts and files[0] not in parts:
            raise CheckpointError(
                f"{folder} has {parts[0].name} and no {INDEX}, which says what lies in which file; "
                "fetch it as well"
            )
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
            for name in sorted(expected.keys() & set(file.keys())):
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
        of_all = named.name if named.expert is None else named.name.rpartition(".")[0]
        targets[of_all, named.expert] = named.data
    return targets


def _values(file: Any, piece: Piece) -> Tensor:
    """Read one piece's values: of a tensor of all experts, those of its own."""
    if piece.part is None:
        values = file.get_tensor(piece.name)
    else:
        values = file.get_slice(piece.name)[piece.part : piece.part + 1].squeeze(0)
    return values.float() + piece.offset if piece.offset else values


def _fill(target: Tensor, rows: tuple[slice, ...] | None, values: Tensor) -> None:
    if rows is None:
        target.copy_(values)
        return
    start = 0
    for run in rows:
        size = run.stop - run.start
        target[run].copy_(values[start : start + size])
        start += size
