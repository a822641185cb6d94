"""Limits: what a launch may take, wherever its ranks run."""

from dataclasses import dataclass

from planner.errors import ConfigError, require_int


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a launch may take. By itself: of this machine.

    Parameters
    ----------
    max_ranks
        Ranks running at once, over all cells.
    retries
        More tries of a cell that failed, in this launch.
    timeout_min
        Minutes after which a cell's job is stopped.
    entry
        What each rank runs, ``module:function``; see `jobs.supervise.Work`.
    """

    max_ranks: int = 4
    retries: int = 1
    timeout_min: float = 10.0
    entry: str = "jobs.rank:main"

    def __post_init__(self) -> None:
        require_int("launcher", "max_ranks", self.max_ranks)
        require_int("launcher", "retries", self.retries, least=0)
        if not self.timeout_min > 0:
            raise ConfigError(f"launcher.timeout_min must be above 0; got {self.timeout_min}")
        if not all(part for part in self.entry.partition(":")):
            raise ConfigError(f"launcher.entry must read module:function; got {self.entry!r}")
