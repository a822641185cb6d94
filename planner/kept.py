"""Kept: how many layers' activations a rank keeps for backward, over all microbatches in flight."""

from dataclasses import dataclass
from functools import lru_cache

from planner.model import Model
from planner.stages import Stage
from planner.step import Step
from planner.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Counts of (layer, microbatch in flight) on one rank.

    Parameters
    ----------
    attention, linear, dense, moe
        Layers with that mixer and that feed-forward part whose activations are kept.
    checkpoints
        Checkpoints, of which the input alone is kept.
    again_attention, again_linear, again_dense, again_moe
        Layers of the checkpoint that is recomputed at a time.
    flights
        Microbatches in flight of the last virtual stage.
    attention_here, linear_here, dense_here, moe_here
        Layers of the rank, of each kind.
    linear_places
        Which of the rank's layers, counted from its first, have linear attention.
    """

    attention: int
    linear: int
    dense: int
    moe: int
    checkpoints: int
    again_attention: int
    again_linear: int
    again_dense: int
    again_moe: int
    flights: int
    attention_here: int
    linear_here: int
    linear_places: frozenset[int]
    dense_here: int
    moe_here: int

    @property
    def layers(self) -> int:
        """Layers of either mixer whose activations are kept."""
        return self.attention + self.linear

    @property
    def again(self) -> int:
        """Layers of the checkpoint that is recomputed at a time."""
        return self.again_attention + self.again_linear


@lru_cache(maxsize=1024)
def kept_of(model: Model, stage: Stage, step: Step) -> Kept:
    """Count what the ranks of a stage keep when most is in flight.

    Multi-token-prediction layers run behind the last stage's last chunk and are kept like it.
    """
    linear, moe = frozenset(model.linear_attention_layers), frozenset(model.moe_layers)
    kept = {True: 0, False: 0}, {True: 0, False: 0}
    checkpoints = 0
    size = step.recompute_layers if step.recompute == "full" else 1
    for chunk, flights in zip(stage.chunks, stage.in_flight, strict=True):
        saved = _saved(chunk, step)
        checkpoints += ceil_div(len(chunk) - len(saved), size) * flights
        for layer in saved:
            kept[0][layer in linear] += flights
            kept[1][layer in moe] += flights
    again = [layer for layer in stage.layers if layer not in _all_saved(stage, step)][-size:]
    if stage.last and step.recompute != "full":
        kept[0][False] += model.mtp_layers * stage.in_flight[-1]
        kept[1][model.is_moe] += model.mtp_layers * stage.in_flight[-1]
    return Kept(
        attention=kept[0][False],
        linear=kept[0][True],
        dense=kept[1][False],
        moe=kept[1][True],
        checkpoints=checkpoints,
        again_attention=sum(layer not in linear for layer in again),
        again_linear=sum(layer in linear for layer in again),
        again_dense=sum(layer not in moe for layer in again),
        again_moe=sum(layer in moe for layer in again),
        flights=stage.in_flight[-1],
        attention_here=sum(layer not in linear for layer in stage.layers),
        linear_here=sum(layer in linear for layer in stage.layers),
        linear_places=frozenset(i for i, layer in enumerate(stage.layers) if layer in linear),
        dense_here=sum(layer not in moe for layer in stage.layers),
        moe_here=sum(layer in moe for layer in stage.layers),
    )


def _saved(chunk: tuple[int, ...], step: Step) -> tuple[int, ...]:
    """Layers of one virtual stage that are no checkpoint."""
    if step.recompute == "full":
        return ()
    return chunk[step.recompute_layers :] if step.recompute == "block" else chunk


def _all_saved(stage: Stage, step: Step) -> frozenset[int]:
    return frozenset(layer for chunk in stage.chunks for layer in _saved(chunk, step))
