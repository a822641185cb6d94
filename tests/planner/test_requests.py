"""Requests, shared prefixes, and how packed tokens lie on ranks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import (
    Batch,
    ConfigError,
    MemorySample,
    Moment,
    Phase,
    Step,
    Topology,
    compile_pricer,
    lay_out,
)
from planner.plain import to_plain
from planner.plan_report import PlanReport, batch_from_plain
from planner.replay import replay
from planner.requests import Prefix, Request, read_requests, requests_of
from tests.conftest import qwen

SYSTEM = Prefix(name="system", tokens=900)
QUESTION = Prefix(name="question", tokens=100, after=SYSTEM)
TREE = [
    Request(tokens=500, prefix=QUESTION),
    Request(tokens=300, prefix=QUESTION),
    Request(tokens=200, prefix=SYSTEM),
    Request(tokens=50),
]


def test_a_prefix_is_packed_once_and_counted_logically_in_full():
    """By hand: own tokens 1050, prefixes 1000 once; in full 2 x 1000 + 900 more."""
    batch = Batch(requests=TREE)
    assert batch.tokens == 1050 + 1000
    assert batch.logical_tokens == 1050 + 1000 + 1000 + 900
    assert lay_out(batch, Topology()).dense_tokens == (2050,)


def test_every_replica_stores_its_own_copy_of_a_prefix():
    """By hand: packed lengths 1500, 300, 200, 50; replica 0 takes the first, 1 the others.

    Replica 1 holds both prefixes once more: 300 + 200 + 50 + 1000.
    """
    layout = lay_out(Batch(requests=TREE), Topology(dp=2))
    assert layout.replicas == ((0,), (1, 2, 3))
    assert layout.dense_tokens == (1500, 1550)


def test_every_piece_is_padded_for_its_cp_ranks():
    """By hand: at cp 2 pieces fall on multiples of 4: 504 + 300 + 904 + 100 + … a rank half."""
    batch = Batch(
        requests=[
            Request(tokens=501, prefix=Prefix(name="p", tokens=901)),
            Request(tokens=300, prefix=Prefix(name="p", tokens=901)),
        ]
    )
    assert lay_out(batch, Topology(cp=2)).dense_tokens == ((504 + 300 + 904) // 2,) * 2


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.sampled_from([1, 2, 4]))
def test_requests_without_prefixes_are_their_lengths(lengths, dp):
    """Law: requests that share nothing lie as their lengths do."""
    full = Batch(requests=[Request(tokens=length) for length in lengths])
    topology = Topology(dp=dp, cp=2)
    assert lay_out(full, topology) == lay_out(Batch(requests=lengths), topology)


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(2, 6))
def test_sharing_never_costs_tokens(prefix, own, count):
    """Law: packed tokens are at most logical ones, and equal when nothing is shared."""
    shared = Prefix(name="p", tokens=prefix)
    batch = Batch(requests=[Request(tokens=own, prefix=shared)] * count)
    assert batch.tokens == prefix + count * own
    assert batch.logical_tokens == count * (prefix + own)


@pytest.mark.parametrize("table", ["art-954", "megatron-local"])
def test_without_gradients_nothing_is_kept_of_layers_that_are_over(table):
    """Reference: the published planner's four row tensors, in place of an input a layer.

    By hand: the input of the layer at hand and of the first, the residual sum and its norm.
    """
    model = qwen(num_layers=8)
    pricer = compile_pricer(model, Topology(), Step(), coefficients=table)
    trained = pricer.price(Batch(requests=[Request(tokens=4096)]))
    scored = pricer.price(Batch(requests=[Request(tokens=4096, gradient=False)]))
    boundary = 4096 * model.hidden * 2
    at = [price.terms_at(Moment.FORWARD_FC2) for price in (trained, scored)]
    assert at[0]["residual.boundaries"] == 8 * boundary
    assert at[1].get("residual.boundaries", 0) + at[1]["residual.stream"] == 4 * boundary
    assert all(moment.phase is not Phase.BACKWARD for moment in scored.moments)
    assert scored.demand_bytes < trained.demand_bytes


def test_a_row_without_gradients_takes_what_was_published():
    """Reference: the published planner at EP1: 192,512 B with the shared return, and 4 x 4,096."""
    pricer = compile_pricer(qwen(num_layers=8), Topology(), Step(), coefficients="art-shared")
    price = pricer.price(Batch(tokens=4096, gradients=False))
    at = price.terms_at(Moment.FORWARD_FC2)
    beside = ("experts.", "shared.", "residual.")
    assert sum(at[term] for term in at if term.startswith(beside)) == 4096 * 208_896


def test_a_batch_without_gradients_is_one_of_requests_without():
    """Law: tokens and shards that need no gradients are priced as requests that say so."""
    pricer = compile_pricer(qwen(num_layers=4), Topology(), Step(), coefficients="megatron-local")
    said = pricer.price(Batch(requests=[Request(tokens=4096, gradient=False)]))
    assert pricer.price(Batch(tokens=4096, gradients=False)).moments == said.moments
    laid = Batch(rank_tokens=[4096], gradients=False)
    assert pricer.price(laid).expected_bytes == said.expected_bytes
    decision = pricer.admit(laid, MemorySample.alike(1, None))
    report = PlanReport.of(pricer, laid, decision)
    assert replay(PlanReport.from_json(report.to_json())).same


def test_a_mixed_batch_is_priced_as_if_all_had_gradients():
    """Reference: the docstring of Batch; a sum that is never too low."""
    mixed = Batch(requests=[Request(tokens=900), Request(tokens=100, gradient=False)])
    assert not mixed.forward_only


def test_without_targets_there_is_no_head():
    """By hand: no target, no logits at any moment."""
    pricer = compile_pricer(qwen(num_layers=2), Topology(), Step(), coefficients="art-954")
    silent = pricer.price(Batch(requests=[Request(tokens=700, targets=0)]))
    assert {line.expected for line in silent.lines if line.term == "head.logits"} == {0}


def test_a_file_of_requests(tmp_path):
    """Reference: the format in the module's docstring."""
    path = tmp_path / "requests.json"
    path.write_text(
        json.dumps(
            {
                "prefixes": {
                    "question": {"tokens": 100, "after": "system"},
                    "system": {"tokens": 900},
                },
                "requests": [
                    {"tokens": 500, "prefix": "question"},
                    {"tokens": 300, "prefix": "question", "targets": 10},
                    200,
                ],
            }
        )
    )
    first, second, third = read_requests(path)
    assert first == Request(tokens=500, prefix=QUESTION)
    assert second.targets == 10
    assert third == Request(tokens=200)
    assert requests_of([5, 7]) == (Request(tokens=5), Request(tokens=7))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "list of lengths"),
        ([], "requests is empty"),
        ([0], r"requests\[0\]: request.tokens must be at least 1; got 0"),
        (["7"], r"requests\[0\]: request.tokens must be an integer; got '7'"),
        ([{"token": 5}], r"requests\[0\] has unknown key 'token'; known: tokens, prefix"),
        ([{"prefix": "a"}], r"requests\[0\].prefix is 'a'; there are no prefixes"),
        ([{"tokens": 5, "gradient": 1}], r"requests\[0\].gradient must be true or false; got 1"),
        ([{"tokens": 5, "targets": 6}], "targets = 6 is more than its 5 tokens"),
        ({"requests": [5], "prefixes": {"a": {}}}, "prefixes.a lacks tokens"),
        ({"requests": [5], "prefixes": {"a": {"tokens": 1, "after": "b"}}}, "no prefix 'b'"),
        (
            {
                "requests": [5],
                "prefixes": {
                    "a": {"tokens": 1, "after": "b"},
                    "b": {"tokens": 1, "after": "a"},
                },
            },
            "prefixes go in a circle: a after b after a",
        ),
    ],
)
def test_what_is_wrong_with_requests_is_named(data, says):
    """Reference: house rule 7."""
    with pytest.raises(ConfigError, match=says):
        requests_of(data)


def test_a_file_that_is_no_json_is_named(tmp_path):
    """Reference: house rule 7."""
    path = tmp_path / "torn.json"
    path.write_text("[5,")
    with pytest.raises(ConfigError, match=r"torn\.json is not JSON"):
        read_requests(path)
    with pytest.raises(ConfigError, match="cannot read the requests in"):
        read_requests(tmp_path / "absent.json")


def test_a_batch_round_trips_through_json():
    """Law: a batch written and read is the same batch."""
    for batch in (
        Batch(requests=TREE),
        Batch(requests=[Request(tokens=9, gradient=False, targets=0, prefix=SYSTEM)]),
        Batch(requests=[5, 6]),
        Batch(rank_tokens=[5, 0]),
    ):
        assert batch_from_plain(json.loads(json.dumps(to_plain(batch)))) == batch
