"""Laws of the room that fragments take, and where its figures are from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.fragments import EXPANDABLE, FIXED, Fragments, fragments_of
from planner.units import GIB

KINDS = (FIXED, EXPANDABLE)
bytes_ = st.integers(0, 1 << 40)


@pytest.mark.parametrize("kind", KINDS)
@given(room=bytes_, more=bytes_)
def test_more_room_is_never_less_usable(kind: Fragments, room: int, more: int) -> None:
    """Law: monotone, between nothing and all of it."""
    assert 0 <= kind.usable(room) <= kind.usable(room + more) <= room + more


@pytest.mark.parametrize("kind", KINDS)
@given(call=bytes_)
def test_a_call_fits_with_its_fragments(kind: Fragments, call: int) -> None:
    """Derivation: room for a call, its share and the constant is usable for all of the call."""
    assert kind.usable(call + kind.lost(call) + 1) >= call
    assert kind.usable(call + kind.lost(call) - 1) <= call


def test_expandable_segments_lose_less() -> None:
    """Reference: docs/experiments/fragments.md; PyTorch's own account of what they are for."""
    assert fragments_of(expandable=True) is EXPANDABLE
    for room in (2, 10, 100):
        assert EXPANDABLE.usable(room * GIB) > FIXED.usable(room * GIB)
