"""Batch: requests of one call, and how they lie on the ranks.

A call packs its requests. Data-parallel replicas take contiguous, token-balanced runs of them;
within a replica every request is cut in ``2·cp`` chunks and context-parallel rank ``c`` holds
chunks ``c`` and ``2·cp - 1 - c`` (Megatron's zigzag), so that causal work is even.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import ConfigError, require_int
from planner.topology import Topology
from planner.units import Tokens, align_up


@dataclass(frozen=True, slots=True, init=False)
class Batch:
    """The requests of one call, in global quantities, or tokens already laid on the ranks.

    Parameters
    ----------
    tokens
        One request of that many tokens.
    requests
        Lengths of the requests, in tokens.
    rank_tokens
        Instead: tokens of each (dp, cp) rank, cp fastest, where the trainer has laid them out
        itself (shards may be uneven). Such a batch cannot be split.

    Raises
    ------
    ConfigError
        When not exactly one of the three is given, or a length is not a positive integer.
    """

    requests: tuple[int, ...]
    rank_tokens: tuple[int, ...]

    def __init__(
        self,
        *,
        tokens: int | None = None,
        requests: Sequence[int] | None = None,
        rank_tokens: Sequence[int] | None = None,
    ) -> None:
        given = [x for x in (tokens, requests, rank_tokens) if x is not None]
        if len(given) != 1:
            raise ConfigError("Batch takes exactly one of tokens, requests, rank_tokens")
        lengths = tuple(requests) if requests is not None else ()
        if tokens is not None:
            lengths = (tokens,)
        laid = tuple(rank_tokens) if rank_tokens is not None else ()
        if not lengths and not laid:
            raise ConfigError("Batch is empty; give at least one request or one rank's tokens")
        for index, length in enumerate(lengths):
            require_int("Batch", f"requests[{index}]", length)
        for index, length in enumerate(laid):
            require_int("Batch", f"rank_tokens[{index}]", length, least=0)
        object.__setattr__(self, "requests", lengths)
        object.__setattr__(self, "rank_tokens", laid)

    @property
    def tokens(self) -> int:
        """Tokens of the whole batch, before padding."""
        return sum(self.requests) or sum(self.rank_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where the tokens of one call lie.

    Parameters
    ----------
    replicas
        For each dp replica, the indices of its requests (empty for tokens laid out by the caller).
    dense_tokens
        Tokens of each (dp, cp) rank, cp fastest, padding included.
    longest
        Padded tokens of the longest replica's packed sequence, over all its cp ranks.
    """

    replicas: tuple[tuple[int, ...], ...]
    dense_tokens: tuple[Tokens, ...]
    longest: Tokens

    def tokens_of(self, rank: int, topology: Topology) -> Tokens:
        """Tokens that global ``rank`` holds."""
        return self.dense_tokens[topology.dp_rank(rank) * topology.cp + topology.cp_rank(rank)]

    @property
    def busiest(self) -> Tokens:
        """Tokens of the rank that holds most."""
        return max(self.dense_tokens)


def padded(length: int, cp: int) -> int:
    """Tokens of one request once it divides into ``2·cp`` chunks (unchanged at cp = 1)."""
    return align_up(length, 2 * cp) if cp > 1 else length


def balanced_runs(lengths: Sequence[int], runs: int) -> tuple[tuple[int, ...], ...]:
    """Cut ``lengths`` into ``runs`` contiguous runs of nearly equal tokens; return their indices.

    Each cut lies where the running total first comes nearest to its even share; every run gets a
    request while there are as many requests as runs, the rest stay empty.
    """
    ends: list[int] = []
    total = sum(lengths)
    done, index = 0, 0
    for run in range(runs):
        share = total * (run + 1) / runs
        last = len(lengths) - (runs - run - 1)  # leave one request for each later run
        first = index
        while index < min(last, len(lengths)) and (
            index == first or abs(done + lengths[index] - share) <= abs(done - share)
        ):
            done += lengths[index]
            index += 1
        ends.append(index)
    ends[-1] = len(lengths)
    starts = [0, *ends[:-1]]
    return tuple(tuple(range(a, b)) for a, b in zip(starts, ends, strict=True))


def lay_out(
    batch: Batch, topology: Topology, replicas: tuple[tuple[int, ...], ...] | None = None
) -> Layout:
    """Lay a batch on a topology.

    Parameters
    ----------
    replicas
        Request indices of each dp replica, as a split child has them; by default the balanced runs.

    Raises
    ------
    ConfigError
        When ``rank_tokens`` does not have one entry for each (dp, cp) rank.
    """
    if batch.rank_tokens:
        if len(batch.rank_tokens) != topology.dp * topology.cp:
            raise ConfigError(
                f"Batch.rank_tokens has {len(batch.rank_tokens)} entries; the topology has "
                f"dp·cp = {topology.dp}·{topology.cp} = {topology.dp * topology.cp} such ranks"
            )
        per_replica = [
            sum(batch.rank_tokens[d * topology.cp : (d + 1) * topology.cp])
            for d in range(topology.dp)
        ]
        return Layout(
            replicas=((),) * topology.dp,
            dense_tokens=tuple(Tokens(t) for t in batch.rank_tokens),
            longest=Tokens(max(per_replica)),
        )
    if replicas is None:
        replicas = balanced_runs(batch.requests, topology.dp)
    sizes = [sum(padded(batch.requests[i], topology.cp) for i in run) for run in replicas]
    return Layout(
        replicas=replicas,
        dense_tokens=tuple(Tokens(s // topology.cp) for s in sizes for _ in range(topology.cp)),
        longest=Tokens(max(sizes)),
    )
