"""Which CUDA devices the ranks of a local cell see."""

import pytest

from jobs.cuda.visible import visible_devices
from planner.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "ranks", "expected"),
    [(None, 2, (0, 1)), ("2,3,5", 2, (2, 3)), ("4", 1, (4,)), (" 1 , 0 ", 2, (1, 0))],
)
def test_devices_are_those_shown_one_a_rank(given, ranks, expected) -> None:
    """Reference: CUDA's variable, a list in the order in which devices are numbered."""
    assert visible_devices(given, ranks) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [("GPU-8932f937,GPU-1", "otherwise than by number"), ("", "shows 0 devices to 1 ranks")],
)
def test_what_cannot_be_handed_on_is_refused(given, message) -> None:
    """Reference: submitit's local executor takes numbers; an empty list hides every device."""
    with pytest.raises(ConfigError, match=message):
        visible_devices(given, 1)
