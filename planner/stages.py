"""Stages: which layers lie on each pipeline rank, and how many of their forwards are in flight.

The schedules are Megatron's: 1F1B, where rank p of P holds up to P - p microbatches, and the
interleaved one, where it holds up to 2·(P - p - 1) + (V - 1)·P + 1 forwards of single chunks.
"""

from dataclasses import dataclass
from functools import lru_cache

from planner.errors import ConfigError
from planner.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The part of a model on one pipeline rank.

    Parameters
    ----------
    layers
        Indices of its layers, in order.
    chunks
        The same, by virtual stage.
    in_flight
        For each virtual stage, forwards whose backward is still to come, at most.
    first, last
        Whether the embedding and whether the head lie here.
    """

    layers: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    in_flight: tuple[int, ...]
    first: bool
    last: bool


def chunks_of(num_layers: int, topology: Topology) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return, for each pipeline rank, the layers of each of its virtual stages.

    Raises
    ------
    ConfigError
        When there are fewer layers than stages, or the layers given do not add up.
    """
    stages = topology.pp * topology.vpp
    if stages > num_layers:
        raise ConfigError(
            f"pp·vpp = {topology.pp}·{topology.vpp} = {stages} is more than the {num_layers} layers"
        )
    if topology.stage_layers is not None and sum(topology.stage_layers) != num_layers:
        raise ConfigError(
            f"Topology.stage_layers = {topology.stage_layers} adds up to "
            f"{sum(topology.stage_layers)}; the model has {num_layers} layers"
        )
    counts = topology.stage_layers or tuple(
        num_layers // stages + (1 if stage < num_layers % stages else 0) for stage in range(stages)
    )
    starts = [sum(counts[:stage]) for stage in range(stages)]
    spans = [tuple(range(a, a + n)) for a, n in zip(starts, counts, strict=True)]
    return tuple(
        tuple(spans[virtual * topology.pp + rank] for virtual in range(topology.vpp))
        for rank in range(topology.pp)
    )


def in_flight(topology: Topology, rank: int, microbatches: int) -> tuple[int, ...]:
    """Return, for each virtual stage of a pipeline rank, its forwards in flight at the fullest."""
    pp, vpp = topology.pp, topology.vpp
    if vpp == 1:
        return (min(pp - rank, microbatches),)
    forwards = min(2 * (pp - rank - 1) + (vpp - 1) * pp + 1, microbatches * vpp)
    flying = [0] * vpp
    for place in range(forwards):  # groups of pp microbatches pass one virtual stage at a time
        group, within = divmod(place, pp * vpp)
        flying[within // min(pp, microbatches - group * pp)] += 1
    return tuple(flying)


def stage_of(num_layers: int, topology: Topology, rank: int, microbatches: int) -> Stage:
    """Return the stage of pipeline rank ``rank``; `ConfigError` as `chunks_of`."""
    pp, vpp, uneven = topology.pp, topology.vpp, topology.stage_layers
    return _stage_of(num_layers, pp, vpp, uneven, rank, microbatches)


@lru_cache(maxsize=4096)
def _stage_of(
    num_layers: int,
    pp: int,
    vpp: int,
    stage_layers: tuple[int, ...] | None,
    rank: int,
    microbatches: int,
) -> Stage:
    """Return a stage; topologies that differ in other axes alone share it."""
    topology = Topology(pp=pp, vpp=vpp, stage_layers=stage_layers)
    chunks = chunks_of(num_layers, topology)[rank]
    return Stage(
        layers=tuple(layer for chunk in chunks for layer in chunk),
        chunks=chunks,
        in_flight=in_flight(topology, rank, microbatches),
        first=rank == 0,
        last=rank == pp - 1,
    )
