"""Labels: what people call the cells of a sweep, told apart where several share a name."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobs.spec import CellSpec

FEW_FACTS = 3
"""Up to so many differences of cells are all named in their labels …"""

SHORT = 40
"""… if none is longer than so many characters, as the lengths of many requests are."""


class Named(NamedTuple):
    """A cell's key, the label in its records, and its spec where that is not lost."""

    key: str
    label: str
    spec: CellSpec | None


def told_apart(cells: Sequence[Named]) -> dict[str, str]:
    """Return each cell's label by its key.

    The calls' name is left out while all cells make the same calls. Where cells of a label differ
    in many facts, as two models do, or in long ones, the fewest that tell them apart are named,
    names first.
    """
    named: dict[str, str] = {}
    groups: dict[str, list[Named]] = defaultdict(list)
    calls = {cell.spec.calls.name if cell.spec else None for cell in cells}
    common = f" {calls.pop()}" if len(calls) == 1 else ""
    for cell in cells:
        groups[cell.label.removesuffix(common)].append(cell)
    for label, alike in groups.items():
        facts = {c.key: _flat(c.spec.to_dict()) if c.spec else {} for c in alike}
        differing = [
            name
            for name in sorted({n for f in facts.values() for n in f} - {"weights.path"})
            if len({repr(f.get(name)) for f in facts.values()}) > 1
        ]
        lengths = [len(str(f.get(name))) for f in facts.values() for name in differing]
        if len(differing) > FEW_FACTS or max(lengths, default=0) > SHORT:
            differing = _telling(list(facts.values()), differing)
        for cell in alike:
            extra = " ".join(f"{name}={facts[cell.key].get(name)}" for name in differing)
            named[cell.key] = f"{label} {extra}".strip()
    return named


def _telling(facts: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return few of ``names`` by which ``facts`` differ as much as by all of them."""

    def kinds(chosen: Sequence[str]) -> int:
        return len({repr([one.get(name) for name in chosen]) for one in facts})

    chosen: list[str] = []
    while kinds(chosen) < kinds(names):
        best = max(
            (name for name in names if name not in chosen),
            key=lambda name: (kinds([*chosen, name]), name.endswith("name")),
        )
        chosen.append(best)
    return chosen


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
