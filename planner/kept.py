"""Kept: how many layers' activations a rank keeps for backward, over all microbatches in flight."""

from dataclasses import dataclass
from functools import lru_cache

from planner.model import Model
from planner.stages import Stage
from planner.step import Step
from planner.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Layers that are recomputed together, by mixer and by feed-forward part."""

    attention: int
    linear: int
    dense: int
    moe: int

    @property
    def layers(self) -> int:
        """Layers of either mixer."""
        return self.attention + self.linear


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Counts of (layer, microbatch in flight) on one rank.

    Parameters
    ----------
    attention, linear, dense, moe
        Layers with that mixer and that feed-forward part whose activations are kept.
    checkpoints
        Checkpoints, of which the input alone is kept.
    again
        The kinds of checkpoint that are recomputed, one at a time.
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
    again: frozenset[Checkpoint]
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


@lru_cache(maxsize=1024)
def kept_of(model: Model, stage: Stage, step: Step) -> Kept:
    """Count what the ranks of a stage keep when most is in flight.

    Multi-token-prediction layers run behind the last stage's last chunk and are kept like it.
    """
    linear, moe = frozenset(model.linear_attention_layers), frozenset(model.moe_layers)
    kept = {True: 0, False: 0}, {True: 0, False: 0}
    checkpoints = 0
    again: set[Checkpoint] = set()
    size = step.recompute_layers if step.recompute == "full" else 1
    for chunk, flights in zip(stage.chunks, stage.in_flight, strict=True):
        saved = _saved(chunk, step)
        run_again = chunk[: len(chunk) - len(saved)]
        checkpoints += ceil_div(len(run_again), size) * flights
        again.update(
            _checkpoint(run_again[start : start + size], linear, moe)
            for start in range(0, len(run_again), size)
        )
        for layer in saved:
            kept[0][layer in linear] += flights
            kept[1][layer in moe] += flights
    if stage.last and step.recompute != "full":
        kept[0][False] += model.mtp_layers * stage.in_flight[-1]
        kept[1][model.is_moe] += model.mtp_layers * stage.in_flight[-1]
    return Kept(
        attention=kept[0][False],
        linear=kept[0][True],
        dense=kept[1][False],
        moe=kept[1][True],
        checkpoints=checkpoints,
        again=frozenset(again),
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


def _checkpoint(layers: tuple[int, ...], linear: frozenset[int], moe: frozenset[int]) -> Checkpoint:
    mixers, parts = sum(at in linear for at in layers), sum(at in moe for at in layers)
    return Checkpoint(
        attention=len(layers) - mixers, linear=mixers, dense=len(layers) - parts, moe=parts
    )
