"""Solvers, identifiability and fits of copies, on planted truth and on derivations."""

import numpy as np
import pytest

from pipeline.regress.draws import bootstrap
from pipeline.regress.identify import identify, next_cells
from pipeline.regress.rows import Rows
from pipeline.regress.solve import (
    FitError,
    Prior,
    conformal,
    envelope,
    kept,
    least_squares,
    outliers,
    quantile,
    robust,
)

TRUTH = np.array([1.0, 2.0, 0.5, 3.0])
NOISE = 0.01


def planted(seed: int, *, rows: int = 120, wrong: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw bytes of one copy, and what truth and noise make of them; some rows tripled."""
    generator = np.random.default_rng(seed)
    matrix = generator.uniform(1e8, 1e10, (rows, len(TRUTH)))
    observed = matrix @ TRUTH * (1 + NOISE * generator.standard_normal(rows))
    observed[generator.choice(rows, wrong, replace=False)] *= 3
    return matrix, observed


def test_intervals_hold_the_planted_truth():
    """Reference: planted truth, 200 draws with 5 % outliers: 93 % of 95 % intervals hold it."""
    held = 0
    for seed in range(200):
        matrix, observed = planted(seed, wrong=6)
        rows = Rows.of(matrix)
        found, limit = robust(rows, observed)
        drawn = bootstrap(
            rows,
            observed,
            groups=np.arange(len(observed)),
            draws=150,
            seed=seed,
            weights=kept(rows.times(found) / observed - 1, limit),
        )
        low, high = drawn.interval(found)
        held += int(((low <= TRUTH) & (high >= TRUTH)).sum())
    assert held >= 0.93 * 200 * len(TRUTH)


def test_outliers_are_named_and_hardly_move_the_fit():
    """Reference: planted truth; the six tripled rows and no others."""
    matrix, observed = planted(1)
    wrong = observed.copy()
    wrong[[3, 7, 30, 31, 60, 90]] *= 3
    rows = Rows.of(matrix)
    found, limit = robust(rows, wrong)
    assert outliers(rows, wrong, found).tolist() == [3, 7, 30, 31, 60, 90]
    weight = kept(rows.times(found) / wrong - 1, limit)
    assert weight[[3, 7, 30, 31, 60, 90]].max() < 0.3
    assert found == pytest.approx(TRUTH, rel=0.02)


def test_copies_are_never_negative():
    """Law: a term cannot take bytes away, whatever the noise."""
    matrix, observed = planted(2)
    extra = np.hstack([matrix, matrix[:, :1] * np.linspace(1.5, 1, len(matrix))[:, None]])
    assert (least_squares(Rows.of(extra), observed) >= 0).all()


def test_a_collinear_group_is_named_and_the_rest_is_not():
    """Reference: linear algebra: a column twice another's is in a group with it."""
    matrix, observed = planted(3)
    doubled = np.hstack([matrix, 2 * matrix[:, :1]])
    found = identify(Rows.of(doubled), observed, ["a", "b", "c", "d", "twice a"])
    assert found.groups == (("a", "twice a"),)
    assert found.rank == 4
    assert found.holds("a")
    assert not found.holds("b")


def test_a_cell_that_separates_a_group_is_proposed():
    """Reference: by hand: only the row in which the two differ tells them apart."""
    matrix, observed = planted(4)
    doubled = np.hstack([matrix, matrix[:, :1]])
    names = ["a", "b", "c", "d", "as a"]
    same, other = np.append(matrix[0], matrix[0, 0]), np.append(matrix[0], 5 * matrix[0, 0])
    cells = {"the same again": same, "another topology": other}
    assert next_cells(Rows.of(doubled), observed, names, cells) == ["another topology"]


def test_an_unseen_coefficient_is_said():
    """Law: a column without a byte is open, not fitted to zero in silence."""
    matrix, observed = planted(5)
    matrix[:, 2] = 0
    assert identify(Rows.of(matrix), observed, list("abcd")).unseen == ("c",)


def test_a_prior_holds_what_the_data_cannot_tell():
    """Law: of two equal columns the sum is the data's, the split the prior's."""
    matrix, observed = planted(6)
    doubled = np.hstack([matrix, matrix[:, :1]])
    prior = Prior(np.array([0.75, 2.0, 0.5, 3.0, 0.25]), 0.01)
    found = least_squares(Rows.of(doubled), observed, prior)
    assert found[0] + found[4] == pytest.approx(1.0, abs=0.02)
    assert found[0] - found[4] == pytest.approx(0.5, abs=0.02)


def test_the_envelope_lies_above_all_and_touches():
    """Law: a linear program of least excess has no row above it and as many active as columns."""
    matrix, observed = planted(7)
    ratio = matrix @ envelope(matrix, observed) / observed
    assert ratio.min() >= 1 - 1e-7
    assert (ratio < 1 + 1e-7).sum() >= matrix.shape[1]


def test_a_quantile_fit_has_its_share_below():
    """Law: of n rows a quantile fit leaves about (1 - level) above, at most the columns off."""
    matrix, observed = planted(8)
    above = (matrix @ quantile(matrix, observed, 0.9) < observed * (1 - 1e-9)).sum()
    assert abs(above - 0.1 * len(observed)) <= matrix.shape[1]


def test_a_quantile_of_one_column_is_the_linear_programs():
    """Reference: the program itself, given a second column that holds no byte."""
    matrix, observed = planted(10)
    one = matrix.sum(axis=1, keepdims=True)
    program = quantile(np.hstack([one, np.zeros_like(one)]), observed, 0.95)
    assert quantile(one, observed, 0.95)[0] == pytest.approx(program[0], rel=1e-6)


def test_the_conformal_factor_covers_at_its_rate():
    """Reference: exchangeable draws are covered at 1 - miss or more, on average over draws."""
    covered = []
    for seed in range(300):
        ratios = np.random.default_rng(seed).lognormal(0, 0.02, 60)
        covered.append(ratios[-1] <= conformal(ratios[:-1], 0.1))
    low = 0.9 - 3 * np.sqrt(0.9 * 0.1 / 300)
    assert np.mean(covered) >= low


def test_too_few_cells_promise_nothing():
    """Law: a miss rate of 5 % takes nineteen exchangeable cells."""
    with pytest.raises(FitError, match="takes 19"):
        conformal(np.ones(18), 0.05)


@pytest.mark.parametrize("bad", [np.nan, -1.0, 0.0, np.inf])
def test_bytes_that_are_none_are_refused(bad):
    """Law: an observation is a finite, positive number of bytes."""
    matrix, observed = planted(9)
    observed[4] = bad
    with pytest.raises(FitError, match="bytes"):
        least_squares(Rows.of(matrix), observed)


def test_nothing_to_fit_on_is_refused():
    """Law: no observation, no coefficient."""
    with pytest.raises(FitError, match="no observations"):
        least_squares(Rows.of(np.zeros((0, 2))), np.zeros(0))
