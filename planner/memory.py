"""Memory: what every rank has just before a call, and what a call needs of it."""

from dataclasses import dataclass

from planner.errors import ConfigError
from planner.profile import Profile
from planner.units import Bytes, gib


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySample:
    """Every rank's memory just before a call.

    Parameters
    ----------
    room_bytes
        What each global rank can still take; ``None``: no limit.
    held_tokens
        Padded tokens that the HybridEP buffers were made for (0: none yet): one figure, or each
        rank's own.
    held_over_bytes
        On each rank, what the dispatchers kept of an earlier call: gone by the time that backward
        begins, since every layer's forward replaces its own. Empty: none.
    profiles
        What earlier calls of each rank have shown. Empty: nothing yet.
    """

    room_bytes: tuple[int | None, ...]
    held_tokens: int | tuple[int, ...] = 0
    held_over_bytes: tuple[int, ...] = ()
    profiles: tuple[Profile, ...] = ()

    @classmethod
    def alike(cls, world: int, room_bytes: int | None, held_tokens: int = 0) -> "MemorySample":
        """Return a sample of ``world`` ranks that all have the same."""
        return cls(room_bytes=(room_bytes,) * world, held_tokens=held_tokens)

    def require(self, world: int) -> None:
        """Check that the sample speaks of every rank.

        Raises
        ------
        ConfigError
            Naming the field, its ranks, and those of the topology.
        """
        alike = type(self.held_tokens) is int and not self.held_over_bytes and not self.profiles
        if alike and len(self.room_bytes) == world:
            return
        held = self.held_tokens if isinstance(self.held_tokens, tuple) else ()
        for name, figures in (
            ("room_bytes", self.room_bytes),
            ("held_over_bytes", self.held_over_bytes),
            ("profiles", self.profiles),
            ("held_tokens", held),
        ):
            if len(figures) != world and (figures or name == "room_bytes"):
                raise ConfigError(
                    f"MemorySample.{name} speaks of {len(figures)} ranks; the topology has {world}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What one rank needs against what it has.

    Parameters
    ----------
    peak_bytes, growth_bytes
        Bound inside PyTorch, and growth set aside outside it.
    """

    rank: int
    peak_bytes: Bytes
    growth_bytes: Bytes
    room_bytes: int | None

    @property
    def bytes(self) -> Bytes:
        """Peak and growth together."""
        return Bytes(self.peak_bytes + self.growth_bytes)

    @property
    def short_bytes(self) -> int:
        """How much room is missing; 0 or less: it fits."""
        return 0 if self.room_bytes is None else self.bytes - self.room_bytes

    def __str__(self) -> str:
        room = "no limit" if self.room_bytes is None else gib(self.room_bytes)
        grown = f" ({gib(self.growth_bytes)} of it buffer growth)" if self.growth_bytes else ""
        return f"rank {self.rank} needs {gib(self.bytes)}{grown}, has {room}"
