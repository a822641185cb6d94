"""Planted truth: figures of a recorded study made anew from known copies, noise and outliers."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.certify import coverage_interval
from pipeline.observations import read_observations
from pipeline.regress.bound import fit_bound
from pipeline.regress.copies import Arguments, Fitted, fit_design
from pipeline.regress.design import Design, make_design
from pipeline.regress.sighting import Sightings, join
from planner import Coefficients
from tests.conftest import GOLDEN

DRAWS = 200
NOISE = 0.01
WRONG = 0.05
ARGUMENTS = Arguments(strength=0.0, floor_bytes=0.0, draws=120)


@pytest.fixture(scope="module")
def study() -> Sightings:
    """The recorded study, twice: figures of each are drawn anew."""
    return join([read_observations(GOLDEN / "default_study").sightings] * 2)


@pytest.fixture(scope="module")
def design(study: Sightings) -> Design:
    """Its figures over the bytes of one copy."""
    return make_design(study, Coefficients.load("megatron-local"))


def plant(design: Design, truth: np.ndarray, seed: int, wrong: float) -> Design:
    """Return a design whose figures are those of known copies, with noise, some tripled."""
    generator = np.random.default_rng(seed)

    def seen(sizes: np.ndarray) -> np.ndarray:
        tripled = np.where(generator.random(len(sizes)) < wrong, 3.0, 1.0)
        return sizes * tripled * (1 + NOISE * generator.standard_normal(len(sizes)))

    peaks = replace(design.peaks, observed=seen(design.peaks.expected(truth)))
    terms = seen(design.term_size * truth[design.term_key])
    return replace(design, peaks=peaks, term_observed=terms)


@pytest.fixture(scope="module")
def draws(study: Sightings, design: Design) -> list[tuple[np.ndarray, Design, Fitted]]:
    """Draws of copies up to a tenth off the table's, the figures that they make, and the fits."""
    first = fit_design(design, study.labels, replace(ARGUMENTS, draws=0))
    held = np.array([name in first.at_prior for name in design.names])
    made = []
    for seed in range(DRAWS):
        off = np.random.default_rng(DRAWS + seed).uniform(0.9, 1.1, len(held))
        truth = np.where(held, design.prior, design.prior * off)
        one = plant(design, truth, seed, WRONG)
        made.append((truth, one, fit_design(one, study.labels, ARGUMENTS)))
    return made


def test_intervals_hold_the_copies_that_were_planted(draws):
    """Reference: the truth: 93 % of the 95 % intervals of 200 draws hold it, with 5 % outliers."""
    held = total = 0
    for truth, _, fitted in draws:
        free = np.array([name not in fitted.at_prior for name in fitted.design.names])
        inside = (fitted.low <= truth) & (truth <= fitted.high)
        held, total = held + int(inside[free].sum()), total + int(free.sum())
    assert total >= 30 * DRAWS
    assert held >= 0.93 * total


def test_what_is_collinear_is_refused_in_every_draw(draws):
    """Law: what only moves together is named and stays where the table has it."""
    for _, _, fitted in draws:
        groups = fitted.identified.groups
        assert any("residual.statistics" in name for group in groups for name in group)
        held = [i for i, name in enumerate(fitted.design.names) if name in fitted.at_prior]
        assert {name for group in groups for name in group} <= set(fitted.at_prior)
        assert (fitted.copies[held] == fitted.design.prior[held]).all()


def test_the_outliers_that_were_planted_are_named(draws):
    """Reference: the tripled peaks of whole calls, which no copies explain."""
    truth, one, fitted = draws[0]
    sizes = one.peaks.expected(truth)
    tripled = [p for p in one.whole if one.peaks.observed[p] > 2 * sizes[p]]
    assert tripled
    count = len(fitted.outliers)
    more = int(fitted.outliers[-1].split()[0]) if fitted.outliers[-1].endswith("less far") else 1
    assert count - 1 + more >= len(tripled)


def test_coverage_of_the_bound_is_within_its_stated_interval(study, design, draws):
    """Reference: the truth's own calls: fresh ones are covered as often as the interval says."""
    inside = 0
    whole = design.whole
    places = design.peaks.sighting[whole]
    for seed, (truth, _, _) in enumerate(draws):
        clean = plant(design, truth, seed, 0.0)
        fitted = fit_design(clean, study.labels, replace(ARGUMENTS, draws=0))
        sizes = clean.peaks.expected(fitted.copies)[whole]
        seen = replace(study, seen={**study.seen, None: study.seen[None].copy()})
        seen.seen[None][places] = clean.peaks.observed[whole]
        bound = fit_bound(seen, sizes, places, ())
        limits = bound.margin * sizes + bound.call_bytes
        low, high = coverage_interval(int((seen.observed[places] <= limits).sum()), len(places))
        fresh = plant(design, truth, 7 * DRAWS + seed, 0.0).peaks.observed[whole]
        inside += low <= float((fresh <= limits).mean()) <= high
    assert inside >= 0.93 * DRAWS
