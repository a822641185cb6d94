"""Effects of classes, the routing allowance and prices of many sightings, against references."""

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.stats.outliers_influence import variance_inflation_factor

from pipeline.observations import read_observations
from pipeline.regress.allowance import fit_allowance
from pipeline.regress.copies import Arguments, fit_copies
from pipeline.regress.effects import figures, ordinary
from pipeline.regress.pricing import Pricing
from pipeline.regress.sighting import Codes, Sightings, join, select
from planner import Coefficients
from planner.coefficients import MILLI
from planner.compiled import TermCompiler
from planner.figures import Figures
from planner.loads import NO_GROWTH
from planner.routing import Allowance
from tests.conftest import GOLDEN

TABLE = Coefficients.load("megatron-local")
EXACT = Arguments(strength=0.0, draws=0)


@pytest.fixture(scope="module")
def study() -> Sightings:
    return read_observations(GOLDEN / "default_study").sightings


def test_intervals_and_inflation_are_those_of_another_library():
    """Reference: statsmodels: HC3 covariance, its condition of scaled columns, VIF."""
    generator = np.random.default_rng(3)
    cold = (generator.random(80) < 0.4).astype(float)
    hybridep = (generator.random(80) < 0.3 + 0.4 * cold).astype(float)
    columns = np.column_stack([np.ones(80), cold, hybridep])
    spread = 0.01 * (1 + 3 * cold)
    target = columns @ [1.0, 0.02, -0.01] + spread * generator.standard_normal(80)
    mine = ordinary(columns, target)
    theirs = sm.OLS(target, columns).fit(cov_type="HC3")
    low, high = theirs.conf_int().T
    assert mine.found == pytest.approx(theirs.params)
    assert mine.low == pytest.approx(low, abs=1e-7)
    assert mine.high == pytest.approx(high, abs=1e-7)
    vif = [variance_inflation_factor(columns, place) for place in (1, 2)]
    assert mine.inflation == pytest.approx(vif)
    unit = columns / np.linalg.norm(columns, axis=0)
    assert mine.condition == pytest.approx(np.linalg.cond(unit))


def test_prices_of_many_are_those_of_the_planner(study):
    """Reference: the planner's own stages, one sighting at a time."""
    pricing = Pricing(study.kinds, TABLE)
    prior = np.array([key.milli / MILLI for key in pricing.keys])
    compiler = TermCompiler(TABLE)
    compared = 0
    for part in pricing.parts(study):
        for place, rows in zip(part.sighting, part.rows, strict=True):
            kind = study.kinds[study.kind[place]]
            arrived = tuple(study.rows[place, : kind.work.layers].tolist())
            work = kind.work._replace(rows=arrived, more_rows=arrived)
            stages = Figures(compiler.compile(kind.local), work, 1000, NO_GROWTH).stages
            assert [moment for moment, *_ in stages] == list(part.moments)
            assert np.ceil(rows @ prior - 1e-3).astype(int).tolist() == [s[1] for s in stages]
            compared += 1
    assert compared == len(study)


def test_a_planted_effect_of_cold_calls_is_found(study):
    """Reference: 2 % more in every cold call, planted; the factor and the others stay."""
    cold = np.char.startswith(np.array(study.fact("call").names)[study.fact("call").code], "cold")
    more = replace(study, seen={**study.seen, None: study.seen[None] * np.where(cold, 1.02, 1.0)})
    fitted = fit_copies(study, TABLE, EXACT)
    found = figures(more, fitted)["peak"]
    low, high = found["effects"]["cold only"]["interval"]
    assert low - 1e-3 <= 0.02 <= high + 1e-3  # the study itself is within a thousandth
    assert found["factor"]["value"] == pytest.approx(1, abs=1e-3)
    assert found["effects"]["hybridep only"]["value"] == pytest.approx(0, abs=1e-3)


def test_figures_beside_the_peak_are_as_derived(study):
    """Reference: the derivation: each figure of the recorded study is its expectation."""
    found = figures(study, fit_copies(study, TABLE, EXACT))
    for name in ("peak", "net peak", "retained", "held over", "growth", "outside"):
        assert found[name]["factor"]["value"] == pytest.approx(1, abs=0.005), name
    assert found["growth"]["calls"] < found["outside"]["calls"] < found["peak"]["calls"]


def test_a_class_that_does_not_vary_has_no_effect_of_its_own(study):
    """Law: where all calls are at one expert rank nothing is said of a dispatcher."""
    dispatcher = study.fact("dispatcher")
    alone = np.flatnonzero(dispatcher.code == dispatcher.names.index("alltoall"))
    some = select(study, alone)
    found = figures(some, fit_copies(some, TABLE, EXACT))["peak"]
    assert "hybridep only" not in found["effects"]
    assert any(line.startswith("hybridep only") for line in found["not_separated"])


def test_the_allowance_is_the_quantile_of_what_arrived(study):
    """Reference: planted imbalances: the 95 % conformal place of 1..400, over 20 cells."""
    many = join([study] * 10)
    count = len(many)
    ratios = 1 + np.arange(1, count + 1) / 1000
    arrived = np.column_stack([ratios, ratios + 1])
    cell = Codes(tuple(map(str, range(20))), np.arange(count) % 20)
    rows = fit_allowance(replace(many, arrived=arrived, cell=cell))
    place = int(np.ceil((count + 1) * 0.95))
    assert rows.measured.factor == pytest.approx(1 + place / 1000, abs=1e-4)
    assert rows.measured.low <= rows.measured.factor <= rows.measured.high
    assert rows.measured.high - rows.measured.low < 0.1
    assert rows.on(Allowance(balanced=1.5, measured=1.2)).balanced >= rows.balanced.factor


def test_too_few_cells_leave_the_allowance_as_it_was(study):
    """Law: a handful of cells says nothing of others' imbalance: the prior's factor stays."""
    cell = Codes(("one", "two"), np.arange(len(study)) % 2)
    rows = fit_allowance(replace(study, cell=cell))
    prior = Allowance(balanced=1.5, measured=1.2)
    assert rows.measured.factor is None
    assert rows.on(prior) == prior
