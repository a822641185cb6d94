"""What calls have shown, and what is kept of it between jobs."""

import json
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import (
    Admit,
    Batch,
    ConfigError,
    MemorySample,
    Profile,
    Step,
    Topology,
    compile_pricer,
)
from planner.batch import lay_out
from planner.children import child_of, demands_of
from planner.moments import Phase
from planner.profile import BANDS, TRUSTED
from planner.profile_store import ProfileStore
from tests.conftest import qwen

sizes = st.integers(1, 2**44)


@given(sizes, st.integers(0, 2**46), sizes)
def test_a_call_teaches_about_calls_near_its_size(expected, observed, other):
    """Law: at its own size the floor covers what was seen; at eight times and beyond it is 0."""
    profile = Profile().learn(expected, observed)
    assert profile.floor(expected) >= observed
    near = max(expected, other) < TRUSTED * min(expected, other)
    if not near and min(expected, other) > 2**17:
        assert profile.floor(other) == 0


@given(st.lists(st.tuples(sizes, sizes), max_size=6), st.lists(st.tuples(sizes, sizes), max_size=6))
def test_learning_never_forgets_and_merges_in_any_order(mine, theirs):
    """Law: a floor never falls; merging is commutative; integers round trip."""
    a, b = Profile(), Profile()
    for expected, observed in mine:
        a = a.learn(expected, observed, expected, observed // 2)
    for expected, observed in theirs:
        b = b.learn(expected, observed, expected, observed // 3)
    both = a.merge(b)
    assert both == b.merge(a)
    for expected, _ in mine:
        assert both.floor(expected) >= a.floor(expected)
    assert Profile.from_ints(both.to_ints()) == both


def test_a_tiny_warm_up_does_not_refuse_a_large_call():
    """Reference: case O06, an open report on the published planner.

    27 tokens peaked at 473,833,984 B above their baseline (17.5 MB a token), after which 17,063 and
    21,489 tokens were refused (20,000 priced at 386 GB in place of 1.26 GB), though 103,960 tokens
    ran at 85.58 GiB in all on a base of 64.89 GiB.
    """
    pricer = compile_pricer(qwen(), Topology(), Step(), coefficients="megatron-local")
    sample = MemorySample(room_bytes=(None,))

    def expected(tokens):
        return pricer.price(Batch(tokens=tokens)).expected_bytes

    profile = Profile().learn(expected(27), 70_148_392_960 - 69_674_556_928)
    profile = profile.learn(expected(103_960), int(85.58 * 2**30) - 69_674_556_928)
    for tokens in (17_063, 20_000, 21_489):
        batch = Batch(tokens=tokens)
        unlearned = pricer.admit(batch, sample, allow_unpriced=True).demands[0].bytes
        roomy = MemorySample(room_bytes=(int(unlearned * 1.5),), profiles=(profile,))
        decision = pricer.admit(batch, roomy, allow_unpriced=True)
        assert isinstance(decision, Admit)
        assert decision.demands[0].bytes < 386_088_618_666 // 10


def test_a_tiny_call_does_not_hide_what_a_large_one_showed():
    """By hand: each size keeps its own worst; a higher ratio elsewhere leaves it as it is."""
    profile = Profile().learn(10**9, 2 * 10**9).learn(10**6, 90 * 10**6)
    assert profile.floor(10**9) == 2 * 10**9


def test_retained_has_a_rate_of_its_own():
    """Reference: domain A.5: two half splits were priced with the peak's rate, 82.5 for 71.5 GiB.

    By hand: what forward leaves is raised by its own ratio, so that a peak twice the plan does not
    double what the children keep side by side.
    """
    pricer = compile_pricer(qwen(num_layers=8), Topology(), Step(), coefficients="art-954")
    batch = Batch(requests=[20_000, 20_000])
    sample = MemorySample(room_bytes=(None,))
    children = [
        child_of(pricer, lay_out(batch, Topology(), ((index,),)), sample) for index in (0, 1)
    ]
    figures = children[0].figures[0]
    kept, peak = figures.expected(Phase.RETAINED), figures.expected_peak
    plain = demands_of(children, sample, together=True)[0].peak_bytes
    seen = Profile().learn(peak, peak, kept, kept)
    taught = MemorySample(room_bytes=(None,), profiles=(seen,))
    assert demands_of(children, taught, together=True)[0].peak_bytes == plain
    high = Profile().learn(peak, peak, kept, 20 * kept)
    taught = MemorySample(room_bytes=(None,), profiles=(high,))
    more = demands_of(children, taught, together=True)[0].peak_bytes
    assert more == 2 * 20 * kept + max(0, figures.bound(Phase.FORWARD) - 20 * kept)


def test_profiles_outlive_the_process(tmp_path):
    """Law: what one job wrote, another of the same kind reads; of another kind, it does not."""
    store = ProfileStore(tmp_path / "cache" / "profiles.json")
    pricer = compile_pricer(qwen(), Topology(cp=2), Step(), coefficients="megatron-local")
    assert store.load(pricer) == Profile()
    seen = Profile().learn(10**9, 11 * 10**8, 10**8, 10**8)
    store.learn(pricer, seen)
    assert ProfileStore(store.path).load(pricer) == seen
    for other in (
        compile_pricer(qwen(), Topology(cp=4), Step(), coefficients="megatron-local"),
        compile_pricer(qwen(), Topology(cp=2), Step(), coefficients="art-954"),
        compile_pricer(qwen(), Topology(cp=2), Step(lora_rank=4), coefficients="megatron-local"),
        compile_pricer(qwen(top_k=4), Topology(cp=2), Step(), coefficients="megatron-local"),
    ):
        assert store.load(other) == Profile()


def _learn(path, place, rounds):
    pricer = compile_pricer(qwen(), Topology(), Step(), coefficients="megatron-local")
    for index in range(rounds):
        expected = 2 ** (18 + (place * rounds + index) % 24)
        ProfileStore(path).learn(pricer, Profile().learn(expected, expected + place + index))


def test_concurrent_jobs_lose_nothing(tmp_path):
    """Law: the file after four writers at once is the merge of all that they learned."""
    path = tmp_path / "profiles.json"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_learn, args=(path, place, 6)) for place in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    expected = Profile()
    for place in range(4):
        for index in range(6):
            size = 2 ** (18 + (place * 6 + index) % 24)
            expected = expected.merge(Profile().learn(size, size + place + index))
    pricer = compile_pricer(qwen(), Topology(), Step(), coefficients="megatron-local")
    assert ProfileStore(path).load(pricer) == expected
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "profiles.json",
        "profiles.json.lock",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": 1, "prof', "is no store of profiles"),
        ('{"schema": 9}', "has schema 9, this version reads 1"),
        ("[]", "has schema None"),
        ('{"schema": 1, "profiles": {"a": {"figures": [1]}}}', f"its {2 * BANDS} figures"),
    ],
)
def test_a_store_that_cannot_be_read_says_so(tmp_path, text, says):
    """Reference: house rule 7."""
    path = tmp_path / "profiles.json"
    path.write_text(text)
    pricer = compile_pricer(qwen(), Topology(), Step(), coefficients="megatron-local")
    with pytest.raises(ConfigError, match=says):
        ProfileStore(path).load(pricer)
    assert json.loads(json.dumps(text)) == path.read_text()
