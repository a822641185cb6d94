"""Arrays of waiting cells: never more ranks than allowed, and no cell left where there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.slurm.flight import Waiting
from jobs.slurm.limits import SlurmLimits
from jobs.slurm.plan import plan
from planner.errors import ConfigError
from tests.slurm.lab import cell

worlds = st.lists(st.sampled_from([1, 2, 4]), max_size=40)


def _waiting(sizes: list[int]) -> list[Waiting]:
    specs = {ranks: cell("waits", ranks) for ranks in (1, 2, 4)}
    return [Waiting(spec=specs[ranks], tries=0, attempt=0) for ranks in sizes]


@given(worlds, st.integers(0, 30), st.integers(1, 12))
def test_all_arrays_together_stay_within_the_ranks_allowed(
    sizes: list[int], free: int, array_limit: int
) -> None:
    """Reference: the law itself, at the worst time, when every array runs all it may."""
    arrays = plan(_waiting(sizes), free, array_limit)
    assert sum(array.ranks * array.parallel for array in arrays) <= free
    for array in arrays:
        assert {len(waiting.spec.ranks) for waiting in array.cells} == {array.ranks}
        assert 1 <= array.parallel <= len(array.cells) <= array_limit


@given(worlds, st.integers(1, 30))
def test_a_cell_that_fits_is_never_the_reason_to_stand_still(sizes: list[int], free: int) -> None:
    """Reference: the law itself: with nothing planned, not even the narrowest cell had room."""
    if not plan(_waiting(sizes), free, 1000):
        assert all(ranks > free for ranks in sizes)


def test_no_room_is_kept_from_the_only_array() -> None:
    """Reference: by hand, 10 cells of 2 ranks in 8 free ranks: four at once."""
    (array,) = plan(_waiting([2] * 10), 8, 1000)
    assert (array.ranks, array.parallel, len(array.cells)) == (2, 4, 10)


def test_a_cell_is_spread_over_nodes_where_its_ranks_divide() -> None:
    """Reference: by hand, sbatch's nodes and ntasks-per-node; memory and gres are of a node."""
    limits = SlurmLimits(nodes=4, gres="gpu:h200:1", memory_gib=1.5, timeout_min=2.0)
    wanted = {
        ranks: tuple(
            limits.parameters(ranks)[name] for name in ("nodes", "ntasks_per_node", "gres")
        )
        for ranks in (1, 2, 6, 8)
    }
    assert wanted == {
        1: (1, 1, "gpu:h200:1"),
        2: (2, 1, "gpu:h200:1"),
        6: (3, 2, "gpu:h200:2"),
        8: (4, 2, "gpu:h200:2"),
    }
    assert limits.parameters(8)["mem"] == "3072M"
    assert limits.parameters(8)["signal_delay_s"] == 30, "not right at the start of two minutes"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gres": "gpu"}, "launcher.gres is what each rank needs"),
        ({"timeout_min": 0.5}, "under a minute"),
        ({"nodes": 0}, "launcher.nodes"),
        ({"poll_s": 0}, "launcher.poll_s"),
        ({"array_size": 0}, "launcher.array_size"),
    ],
)
def test_what_no_cluster_could_do_is_refused(changes: dict[str, object], words: str) -> None:
    """Reference: the message names the key, the value and what would do."""
    with pytest.raises(ConfigError, match=words):
        SlurmLimits(**changes)  # type: ignore[arg-type]
