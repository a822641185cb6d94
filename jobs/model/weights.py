"""Set the weights of a model: drawn from a seed, or read from a checkpoint."""

import hashlib
import math
from pathlib import Path

import torch

from jobs.model.hf_files import load_pretrained
from jobs.model.names import Named, global_parameters
from jobs.spec import CellSpec

ADAPTER_OUT_STD = 0.02
"""Spread of the second adapter factor: not zero, so that the first one has a gradient."""

RESIDUAL_WRITERS = ("linear_proj.weight", "fc2.weight")


def load_weights(model: torch.nn.Module, spec: CellSpec) -> None:
    """Fill every parameter of this rank as the cell's ``weights`` say.

    Raises
    ------
    CheckpointError
        When the checkpoint and the model do not fit together.
    """
    draw_weights(model, spec.weights.seed)
    if spec.weights.kind == "pretrained":
        assert spec.weights.path is not None
        load_pretrained(model, spec.model, Path(spec.weights.path))


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Draw all weights and adapters from ``seed`` and their global names.

    A value depends on nothing else, so that every topology has the same model. Norm scales are 1;
    other weights are normal with variance 1/fan-in, those that write to the residual stream divided
    by twice the layers as well (Megatron's scaled initialisation).
    """
    layers = len(model.decoder.layers)
    with torch.no_grad():
        for named in global_parameters(model):
            _draw(named, seed, layers)


def _draw(named: Named, seed: int, layers: int) -> None:
    data = named.data
    if data.dim() == 1:
        data.fill_(1.0)
        return
    digest = hashlib.sha256(f"{seed}/{named.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    values = torch.randn(data.shape, generator=generator)
    data.copy_(values * _spread(named, layers))


def _spread(named: Named, layers: int) -> float:
    if "lora_b" in named.name:
        return ADAPTER_OUT_STD
    if named.name == "embedding.weight":
        return 1.0
    # Adapters lie (in, out), base weights (out, in).
    fan_in = named.data.shape[0 if "lora_a" in named.name else 1]
    to_residual = any(part in named.name for part in RESIDUAL_WRITERS)
    return 1 / math.sqrt(fan_in * (2 * layers if to_residual else 1))
