"""Attribution: which planner term each live storage belongs to, by an ordered table of rules."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jobs.meter.allocation import PHASES, Allocation
from jobs.meter.call import total

TAGS = ("module", "op", "node", "dtype")
"""Tags that a rule matches with a regular expression."""

HANDS = ("forward", "head", "recompute", "backward")
"""What a layer, or the head, can be at hand for."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


class RuleError(ValueError):
    """A rule that cannot be read."""


class Hand(NamedTuple):
    """What was at hand at the moment looked at: a layer and its phase, or the head above them."""

    phase: str
    layer: int

    @classmethod
    def of(cls, phase: str, module: str, layers: int) -> "Hand":
        """Read it from where an allocation was made, in a model of so many layers."""
        layer = layer_of(module)
        return cls("head", layers - 1) if layer is None else cls(phase, layer)


def layer_of(module: str) -> int | None:
    """Index of the layer that a module path lies in; ``None`` outside the layers."""
    found = _LAYER.search(module)
    return None if found is None else int(found.group(1))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Storages that all stated conditions hold for belong to ``term``; the first such rule decides.

    Parameters
    ----------
    term
        Planner term, ``family.thing``.
    why
        What the storage is and how the conditions tell.
    module, op, node, dtype
        Regular expressions that the whole of the allocation's tag must match.
    shape
        Dimensions after those of size 1 are dropped: names of symbols, ``*`` for any size,
        ``...`` in front for any leading dimensions: ``("T", "H")``, ``("...", "E")``.
    phases
        Phases in which the allocation may have been made.
    gradient
        Whether the storage became a parameter's ``.grad``.
    hand
        What may be at hand at the moment looked at.
    least, most
        Bounds of the storage's layer, counted from the layer at hand: 1 is the layer above it.

    Raises
    ------
    RuleError
        For an unknown phase or hand, an expression that does not compile, or a shape of ``...``
        alone.
    """

    term: str
    why: str
    module: str = ".*"
    op: str = ".*"
    node: str = ".*"
    dtype: str = ".*"
    shape: tuple[str, ...] | None = None
    phases: tuple[str, ...] = PHASES
    gradient: bool | None = None
    hand: tuple[str, ...] = HANDS
    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("phases", PHASES), ("hand", HANDS)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise RuleError(
                    f"{self.term}: {name} has {', '.join(unknown)}; known: {', '.join(known)}"
                )
        if self.shape == ("...",):
            raise RuleError(f"{self.term}: a shape of ... alone says nothing; leave it out")
        for name in TAGS:
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise RuleError(f"{self.term}: {name} is no regular expression: {error}") from error

    @cached_property
    def _expressions(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple((tag, re.compile(getattr(self, tag))) for tag in TAGS)

    def matches(
        self, allocation: Allocation, symbols: Mapping[str, frozenset[int]], hand: Hand
    ) -> bool:
        """Whether every condition holds; ``symbols`` gives the sizes each name may stand for.

        Raises
        ------
        RuleError
            When the shape names a symbol that is not given.
        """
        return (
            allocation.phase in self.phases
            and hand.phase in self.hand
            and self._lies_in_reach(allocation, hand)
            and (self.gradient is None or self.gradient == bool(allocation.gradient_of))
            and all(
                expression.fullmatch(getattr(allocation, tag)) is not None
                for tag, expression in self._expressions
            )
            and (self.shape is None or self._fits(allocation.shape, symbols))
        )

    def _lies_in_reach(self, allocation: Allocation, hand: Hand) -> bool:
        if self.least is None and self.most is None:
            return True
        layer = layer_of(allocation.module)
        if layer is None:
            return False
        distance = layer - hand.layer
        return (self.least is None or distance >= self.least) and (
            self.most is None or distance <= self.most
        )

    def _fits(self, shape: tuple[int, ...], symbols: Mapping[str, frozenset[int]]) -> bool:
        assert self.shape is not None
        sizes = [size for size in shape if size != 1]
        names = self.shape
        if names[:1] == ("...",):
            names = names[1:]
            sizes = sizes[-len(names) :]
        missing = [name for name in names if name != "*" and name not in symbols]
        if missing:
            raise RuleError(
                f"{self.term}: no sizes for {', '.join(missing)}; given are {', '.join(symbols)}"
            )
        return len(sizes) == len(names) and all(
            name == "*" or size in symbols[name] for size, name in zip(sizes, names, strict=True)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """Live bytes by planner term.

    Parameters
    ----------
    terms
        Bytes of each term that has any.
    members
        The storages of each term.
    unattributed
        Storages that no rule matched, largest first.
    used
        Rules that decided for at least one storage.
    """

    terms: dict[str, int]
    members: dict[str, tuple[Allocation, ...]]
    unattributed: tuple[Allocation, ...]
    used: frozenset[Rule]

    @property
    def unattributed_bytes(self) -> int:
        """Bytes that no rule matched."""
        return total(self.unattributed)


def attribute(
    live: Iterable[Allocation],
    rules: Sequence[Rule],
    symbols: Mapping[str, frozenset[int]],
    hand: Hand,
) -> Attribution:
    """Give each storage of ``live`` to the term of the first rule that matches it.

    Parameters
    ----------
    live
        Storages alive at one moment, as `jobs.meter.call.CallLedger.at_peak` gives them.
    rules
        In order of precedence.
    symbols
        Sizes that each name in a rule's shape may stand for: ``{"T": {512}, "H": {256}}``.
    hand
        What was at hand at that moment.
    """
    members: dict[str, list[Allocation]] = {}
    unattributed: list[Allocation] = []
    used: set[Rule] = set()
    for allocation in live:
        rule = next((r for r in rules if r.matches(allocation, symbols, hand)), None)
        if rule is None:
            unattributed.append(allocation)
        else:
            members.setdefault(rule.term, []).append(allocation)
            used.add(rule)
    return Attribution(
        terms={term: total(found) for term, found in sorted(members.items())},
        members={term: tuple(found) for term, found in sorted(members.items())},
        unattributed=tuple(sorted(unattributed, key=lambda a: a.nbytes, reverse=True)),
        used=frozenset(used),
    )
