"""The parts of a cell beside model, topology and step: weights, workload, calls and meter."""

from dataclasses import dataclass

from planner.batch import Batch
from planner.errors import ConfigError, require_choice, require_int

ROUTINGS = ("balanced", "measured", "skewed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Where the weights come from, and what is known of their routing.

    Parameters
    ----------
    name
        Label in reports, and part of the key.
    kind
        ``random`` (drawn from ``seed``, the same on every topology) or ``pretrained``.
    path, digest
        Folder of the checkpoint in Hugging Face layout and the hash of its content; the digest is
        part of the key, the path is not.
    routing
        ``balanced``; ``measured``: shares of each expert and layer read from
        ``<path>/routing.json``; or, on the fake backend, ``skewed`` by ``imbalance``.
    imbalance
        Where routing is skewed: rows of expert rank 0 over its even share.
    seed
        Seed of random weights and of adapters.
    """

    name: str
    kind: str = "random"
    path: str | None = None
    digest: str | None = None
    routing: str = "balanced"
    imbalance: float = 1.0
    seed: int = 913

    def __post_init__(self) -> None:
        require_choice("Weights", "kind", self.kind, ("random", "pretrained"))
        require_choice("Weights", "routing", self.routing, ROUTINGS)
        require_int("Weights", "seed", self.seed, least=0)
        if self.imbalance != 1 and self.routing != "skewed":
            raise ConfigError(
                f"Weights.imbalance = {self.imbalance:g} needs routing=skewed; "
                f"routing is {self.routing}"
            )
        if self.kind == "pretrained" and not self.path:
            raise ConfigError(
                "Weights.kind is pretrained but path is empty; give the checkpoint's folder"
            )
        if self.routing == "measured" and not self.path:
            raise ConfigError(
                "Weights.routing is measured but path is empty; give the folder that holds "
                "routing.json, or set routing=balanced"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The requests of each call: lengths in tokens, over the whole world.

    Parameters
    ----------
    rank_tokens
        On the fake backend, instead of requests: tokens of each (dp, cp) rank, cp fastest, as a
        trainer has laid them out; they may be uneven.
    gradients
        Whether a call has a backward; without one it gives log-probabilities, as an evaluation or
        a reference policy does.
    """

    name: str
    requests: tuple[int, ...] = ()
    rank_tokens: tuple[int, ...] = ()
    seed: int = 7
    gradients: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "requests", tuple(self.requests))
        object.__setattr__(self, "rank_tokens", tuple(self.rank_tokens))
        require_int("Workload", "seed", self.seed, least=0)
        if self.requests and self.rank_tokens:
            raise ConfigError("Workload takes requests or rank_tokens; got both")
        self.batch()  # raises for an empty list or a length that is no integer

    def batch(self) -> Batch:
        """Return the requests of one call as the planner has them."""
        if self.rank_tokens:
            return Batch(rank_tokens=self.rank_tokens, gradients=self.gradients)
        return Batch(requests=self.requests, gradients=self.gradients)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """How many calls one process makes: ``warmup`` unrecorded ones, then ``measured`` ones.

    Call 0 of a process is cold, later ones are warm; a warm-up takes index 0.
    """

    name: str
    warmup: int = 0
    measured: int = 3

    def __post_init__(self) -> None:
        require_int("Calls", "warmup", self.warmup, least=0)
        require_int("Calls", "measured", self.measured)

    @property
    def recorded(self) -> range:
        """Indices of the calls that leave a record."""
        return range(self.warmup, self.warmup + self.measured)


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """What observes, and what room the planner is given.

    Parameters
    ----------
    ledger
        Whether live bytes are followed (design: on by default; its overhead is recorded).
    budget_gib
        Room of each rank for what it holds beyond its weights; ``None``: no limit.
    allow_unpriced
        Whether a batch with unpriced parts may be admitted.
    ranks
        On the fake backend, the global ranks to act as; by default rank 0 and the one with most
        tokens.
    snapshot
        On the CUDA backend, whether each call's allocator history is kept, for `peakcast snapshot`.
    profile
        File in which what calls have shown is kept from job to job; ``None``: nothing is kept. No
        part of a cell's key.
    """

    ledger: bool = True
    budget_gib: float | None = None
    allow_unpriced: bool = False
    ranks: tuple[int, ...] | None = None
    profile: str | None = None
    snapshot: bool = False

    def __post_init__(self) -> None:
        if self.ranks is not None:
            object.__setattr__(self, "ranks", tuple(sorted(set(self.ranks))))
            for rank in self.ranks or ():
                require_int("Meter", "ranks entry", rank, least=0)
            if not self.ranks:
                raise ConfigError("Meter.ranks is empty; name ranks, or null for the busiest")
        if self.budget_gib is not None and not (
            isinstance(self.budget_gib, (int, float))
            and not isinstance(self.budget_gib, bool)
            and self.budget_gib > 0
        ):
            raise ConfigError(
                f"Meter.budget_gib must be a positive number of GiB or null; "
                f"got {self.budget_gib!r}"
            )
