"""Savings: the same cell with and without `step.release_dispatcher_state`, side by side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.store import Cell, Row, Store
from pipeline.summary import Summary

SWITCH = "release_dispatcher_state"


@dataclass(frozen=True, slots=True)
class Saving:
    """The fullest rows of a cell whose dispatchers keep their state, and of its counterpart."""

    kept: Row
    released: Row


def savings(store: Store, groups: Sequence[Summary]) -> list[Saving]:
    """Pair the groups of cells that differ in nothing but the switch."""
    if len({_released(cell) for cell in store.cells}) < 2:
        return []
    places = {cell.key: (_rest(cell), _released(cell)) for cell in store.cells if cell.spec}
    released = {
        (places[group.fullest["key"]][0], group.fullest["temperature"]): group.fullest
        for group in groups
        if places.get(group.fullest["key"], ("", False))[1]
    }
    found = []
    for group in groups:
        rest, has_released = places.get(group.fullest["key"], ("", True))
        other = released.get((rest, group.fullest["temperature"]))
        if not has_released and other is not None:
            found.append(Saving(group.fullest, other))
    return found


def _released(cell: Cell) -> bool:
    return cell.spec is not None and cell.spec.step.release_dispatcher_state


def _rest(cell: Cell) -> str:
    """Return all of a cell's spec but the switch."""
    assert cell.spec is not None
    values = cell.spec.to_dict()
    del values["step"][SWITCH]
    return json.dumps(values, sort_keys=True)
