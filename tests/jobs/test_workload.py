"""The requests of a call: which text, which tokens on which rank, which targets."""

from dataclasses import replace

import pytest
import torch
from small_cells import MODEL, cell

from jobs.model.kernels.target_log_probs import NO_TARGET
from jobs.text import BLOCK, ROLES, corpus, text_of, window
from jobs.workload import local_batch, request_tokens
from planner.batch import Batch, lay_out
from planner.errors import ConfigError

REQUESTS = (24, 33, 16, 31)


def test_roles_share_the_corpus_and_no_block():
    """Conservation: the roles' texts add up to the whole; blocks are dealt out in turn."""
    whole = corpus()
    assert sum(len(text_of(role)) for role in set(ROLES)) == len(whole)
    assert text_of("census").startswith(whole[8 * BLOCK : 9 * BLOCK])
    assert text_of("calls").startswith(whole[9 * BLOCK : 10 * BLOCK])


def test_a_window_wraps():
    """Derivation: positions count modulo the text's length."""
    text = text_of("calls")
    assert window("calls", len(text) - 2, 5) == text[-2:] + text[:3]
    assert window("calls", 1, len(text) + 3) == text[1:] + text[:4]


def test_calls_differ_in_text_and_agree_in_lengths():
    """Contract: different windows, the same lengths; the same call gives the same text."""
    spec = cell()
    first, again, second = (request_tokens(spec, call, 1) for call in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert len(first) == len(second) == 33
    assert bytes(first.tolist()) in text_of("calls") * 2


@pytest.mark.parametrize("topology", ["ep1_cp2", "ep2_cp1", "ep4_cp2"])
def test_ranks_hold_the_tokens_that_the_planner_lays_out(topology):
    """Second implementation: planner.batch.lay_out, and the requests put together again."""
    spec = cell(topology)
    layout = lay_out(Batch(requests=REQUESTS), spec.topology)
    pairs: dict[int, dict[int, tuple[int, int]]] = {}
    for rank in range(spec.topology.world):
        batch = local_batch(spec, rank, 0)
        assert len(batch.tokens) == batch.layout.tokens == layout.tokens_of(rank, spec.topology)
        run = layout.replicas[spec.topology.dp_rank(rank)]
        request = torch.cat(
            [
                torch.full((n // batch.layout.degree,), i)
                for i, n in zip(run, batch.layout.lengths, strict=True)
            ]
        )
        for index, position, token, target in zip(
            request.tolist(),
            batch.positions.tolist(),
            batch.tokens.tolist(),
            batch.targets.tolist(),
            strict=True,
        ):
            assert pairs.setdefault(index, {}).setdefault(position, (token, target))
    for index, length in enumerate(REQUESTS):
        tokens = request_tokens(spec, 0, index).tolist()
        got = [pairs[index][position] for position in sorted(pairs[index])]
        assert [token for token, _ in got[:length]] == tokens
        assert [target for _, target in got[: length - 1]] == tokens[1:]
        assert all(target == NO_TARGET for _, target in got[length - 1 :])
        assert all(token == 0 for token, _ in got[length:])


def test_targets_are_counted_over_the_whole_call():
    """Conservation: the ranks' targets sum to the global number, also in a split child."""
    spec = cell("ep4_cp2")
    batches = [local_batch(spec, rank, 0) for rank in range(4)]
    assert sum(int(b.has_target.sum()) for b in batches) == batches[0].global_targets == 100
    child = local_batch(spec, 0, 0, (1,))
    assert child.global_targets == 100


def test_a_replica_without_requests_holds_nothing():
    """Derivation: an uneven split leaves a replica empty."""
    batch = local_batch(cell("ep2_cp1"), 1, 0, ())
    assert batch.layout.tokens == 0
    assert batch.tokens.shape == batch.targets.shape == batch.positions.shape == (0,)


def test_a_vocabulary_too_small_is_refused():
    """Contract: one token per byte."""
    with pytest.raises(ConfigError, match="vocab = 100 has no token for each of the 256 bytes"):
        local_batch(cell(model=replace(MODEL, vocab=100)), 0, 0)


def test_a_call_without_targets_is_refused():
    """Derivation: a request of one token predicts nothing, so the mean has no terms."""
    with pytest.raises(ConfigError, match="at least two"):
        local_batch(cell(requests=(1, 1)), 0, 0)
