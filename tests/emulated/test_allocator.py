"""The simulated caching allocator against PyTorch's own, step by step."""

import json
import lzma

import pytest

from tests.emulated.allocator_settings import (
    CASES,
    TIMELINE,
    TIMELINE_CASES,
    lists,
    real_answers,
)
from tests.jobs.allocator_answers import difference, settings_of

COUNT, LENGTH, SEED = 16, 80, 70_000


@pytest.mark.parametrize("name", CASES)
def test_every_step_has_the_real_allocator_s_figures(name: str) -> None:
    """Reference: torch's allocator, run: its statistics after each step, its layout at the end."""
    case = CASES[name]
    played = lists(case, count=COUNT, length=LENGTH, seed=SEED)
    told = real_answers(case, played)
    settings = settings_of(told, case.fraction)
    for number, (steps, answer) in enumerate(zip(played, told["answers"], strict=True)):
        assert difference(steps, answer, settings) is None, f"list {SEED + number}"
    failures = sum(answer["figures"][-1][4] for answer in told["answers"])
    assert failures or case.device_bytes > 10 * 2**30, "the lists are meant to fill the device"


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_full_size_rank_s_requests(conf: str) -> None:
    """Reference: torch's allocator, run on the requests of a rank of eight layers, two calls."""
    case = TIMELINE_CASES[conf]
    steps = json.loads(lzma.decompress(TIMELINE.read_bytes()))["steps"]
    told = real_answers(case, [steps])
    assert difference(steps, told["answers"][0], settings_of(told)) is None
