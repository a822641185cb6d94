"""Batch: requests of one call, and how they lie on the ranks.

A call packs its requests. Data-parallel replicas take contiguous, token-balanced runs of them;
within a replica every request is cut in ``2·cp`` chunks and context-parallel rank ``c`` holds
chunks ``c`` and ``2·cp - 1 - c`` (Megatron's zigzag), so that causal work is even. A prefix that
requests share is stored once in each replica, and cut as a request is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.errors import ConfigError, require_int
from planner.requests import Request
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
        The requests, or their lengths in tokens.
    rank_tokens
        Instead: tokens of each (dp, cp) rank, cp fastest, where the trainer has laid them out
        itself (shards may be uneven). Such a batch cannot be split.
    gradients
        ``False``: no request needs gradients, as where log-probabilities alone are asked for. It
        is priced as such under full recompute, else as if they did.

    Attributes
    ----------
    requests
        Each request's own tokens.
    prefixes, prefix_tokens
        For each request, the prefixes it begins with, as indices into their lengths. Empty where
        nothing is shared.
    forward_only
        No request needs gradients. A batch that mixes both is priced as if all did.
    headless
        No request has a target, so that the head does not run.

    Raises
    ------
    ConfigError
        When not exactly one of the three is given, or a length is not a positive integer.
    """

    requests: tuple[int, ...]
    rank_tokens: tuple[int, ...]
    prefixes: tuple[tuple[int, ...], ...]
    prefix_tokens: tuple[int, ...]
    forward_only: bool
    headless: bool

    def __init__(
        self,
        *,
        tokens: int | None = None,
        requests: Sequence[int | Request] | None = None,
        rank_tokens: Sequence[int] | None = None,
        gradients: bool = True,
    ) -> None:
        given = [x for x in (tokens, requests, rank_tokens) if x is not None]
        if len(given) != 1:
            raise ConfigError("Batch takes exactly one of tokens, requests, rank_tokens")
        sent: tuple[int | Request, ...] = tuple(requests) if requests is not None else ()
        if tokens is not None:
            sent = (tokens,)
        laid = tuple(rank_tokens) if rank_tokens is not None else ()
        if not sent and not any(laid):
            raise ConfigError("Batch is empty; give at least one request or one rank's tokens")
        full = [item for item in sent if isinstance(item, Request)]
        lengths = tuple([item.tokens if isinstance(item, Request) else item for item in sent])
        for index, length in enumerate(lengths):
            if type(length) is not int or length < 1:
                require_int("Batch", f"requests[{index}]", length)
        for index, length in enumerate(laid):
            require_int("Batch", f"rank_tokens[{index}]", length, least=0)
        prefixes, prefix_tokens = _number(sent) if full else ((), ())
        every = bool(full) and len(full) == len(sent)
        forward_only = not gradients or (every and not any(r.gradient for r in full))
        object.__setattr__(self, "requests", lengths)
        object.__setattr__(self, "rank_tokens", laid)
        object.__setattr__(self, "prefixes", prefixes)
        object.__setattr__(self, "prefix_tokens", prefix_tokens)
        object.__setattr__(self, "forward_only", forward_only)
        object.__setattr__(self, "headless", every and all(r.targets == 0 for r in full))

    @property
    def tokens(self) -> int:
        """Packed tokens of the whole batch, before padding: each prefix once."""
        return sum(self.requests) + sum(self.prefix_tokens) + sum(self.rank_tokens)

    @property
    def logical_tokens(self) -> int:
        """Tokens of all requests in full."""
        shared = (self.prefix_tokens[index] for chain in self.prefixes for index in chain)
        return sum(self.requests) + sum(shared) + sum(self.rank_tokens)

    def packed_lengths(self, run: Sequence[int]) -> list[int]:
        """Tokens that each request of a run adds to it: its own, and prefixes not there yet."""
        if not self.prefix_tokens:
            return [self.requests[index] for index in run]
        there: set[int] = set()
        lengths: list[int] = []
        for index in run:
            new = [prefix for prefix in self.prefixes[index] if prefix not in there]
            there.update(new)
            lengths.append(self.requests[index] + sum(self.prefix_tokens[i] for i in new))
        return lengths

    def padded_tokens(self, run: Sequence[int], cp: int) -> int:
        """Tokens of a run's packed sequence, every piece padded for its cp ranks."""
        pieces = [self.requests[index] for index in run]
        if self.prefixes:
            shared = {prefix for index in run for prefix in self.prefixes[index]}
            pieces += [self.prefix_tokens[prefix] for prefix in shared]
        if cp == 1:
            return sum(pieces)
        step = 2 * cp
        return sum([-(-piece // step) for piece in pieces]) * step


def _number(
    sent: Sequence[int | Request],
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return each request's prefixes by number, and the prefixes' lengths."""
    chains = [item.chain if isinstance(item, Request) else () for item in sent]
    numbers = {prefix: i for i, prefix in enumerate(dict.fromkeys(p for c in chains for p in c))}
    if not numbers:
        return (), ()
    return (
        tuple(tuple(numbers[prefix] for prefix in chain) for chain in chains),
        tuple(prefix.tokens for prefix in numbers),
    )


class Layout(NamedTuple):
    """Where the tokens of one call lie.

    Parameters
    ----------
    replicas
        For each dp replica, the indices of its requests (empty for tokens laid out by the caller).
    dense_tokens
        Tokens of each (dp, cp) rank, cp fastest, padding included.
    longest
        Padded tokens of the longest replica's packed sequence, over all its cp ranks.
    forward_only, headless
        As the batch's.
    even
        Whether every rank holds as many tokens and every replica as many requests.
    """

    replicas: tuple[tuple[int, ...], ...]
    dense_tokens: tuple[Tokens, ...]
    longest: Tokens
    forward_only: bool = False
    headless: bool = False
    even: bool = False

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
    if runs == 1:
        return (tuple(range(len(lengths))),)
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
    cp = topology.cp
    if batch.rank_tokens:
        return _as_laid(batch, topology)
    if replicas is None:
        everything = tuple(range(len(batch.requests)))
        if topology.dp == 1:
            return _one_replica(batch, everything, cp)
        replicas = balanced_runs(batch.packed_lengths(everything), topology.dp)
    sizes = [batch.padded_tokens(run, cp) for run in replicas]
    dense: list[int] = []
    for size in sizes:
        dense += [size // cp] * cp
    return _layout(replicas, dense, max(sizes), batch)


def _one_replica(batch: Batch, everything: tuple[int, ...], cp: int) -> Layout:
    """Return the layout of a batch whose requests all lie on the ranks of one replica."""
    if len(everything) == 1 and cp > 1 and not batch.prefixes:
        step = 2 * cp
        size = -(-batch.requests[0] // step) * step
    else:
        size = batch.padded_tokens(everything, cp)
    shares = (Tokens(size // cp),) * cp
    headless = batch.headless
    return Layout((everything,), shares, Tokens(size), batch.forward_only, headless, even=True)


def _layout(
    replicas: tuple[tuple[int, ...], ...], dense: Sequence[int], longest: int, batch: Batch
) -> Layout:
    tokens: tuple[Tokens, ...] = tuple(dense)  # type: ignore[arg-type]
    even = tokens.count(tokens[0]) == len(tokens)
    if even and len(replicas) > 1:
        requests = len(replicas[0])
        even = all(len(run) == requests for run in replicas)
    return Layout(replicas, tokens, Tokens(longest), batch.forward_only, batch.headless, even)


def _as_laid(batch: Batch, topology: Topology) -> Layout:
    """Return the layout of tokens that the caller has laid out."""
    if len(batch.rank_tokens) != topology.dp * topology.cp:
        raise ConfigError(
            f"Batch.rank_tokens has {len(batch.rank_tokens)} entries; the topology has "
            f"dp·cp = {topology.dp}·{topology.cp} = {topology.dp * topology.cp} such ranks"
        )
    per_replica = [
        sum(batch.rank_tokens[d * topology.cp : (d + 1) * topology.cp]) for d in range(topology.dp)
    ]
    return _layout(((),) * topology.dp, batch.rank_tokens, max(per_replica), batch)
