"""What a price, a decision and a search cost, beside the arithmetic of a closed formula.

The yardstick is the work of Megatron-LM's own estimate (`megatron/training/
theoretical_memory_usage.py`, which the megatron-core package leaves out): parameters of every kind
of layer, total and active, by how they are divided, with their optimizer states, and one activation
formula. Written again here it does as many reads of settings and sums in plain Python and comes to
the same bytes; beside it the original's two functions take 1.05 of its time, and 1.25 with the text
that they are reported in. All figures are CPU time, the least of several rounds taken turn by turn
in one process.
"""

import subprocess
import sys
from itertools import cycle, islice
from statistics import median
from time import process_time
from types import SimpleNamespace

import pytest

from planner import Batch, Coefficients, MemorySample, Step, Topology, compile_pricer
from planner.search import every_topology, price_all
from tests.conftest import qwen

ROUNDS = 40
EACH = 200

PRICE_LIMIT = 3.0
"""A full explained price: every moment, expected and bound, and every term at each of them."""

DECISION_LIMIT = 1.25
"""A decision: no more than the original's estimate as it is reported."""

TOPOLOGIES = 10_000

TOPOLOGY_LIMIT = 20
"""A topology compiled and priced: 100 microseconds where the yardstick takes 5."""

SETTINGS = SimpleNamespace(
    layers=40,
    hidden=2048,
    heads=16,
    groups=2,
    channels=256,
    ffn=8192,
    experts=256,
    moe_ffn=512,
    shared_ffn=512,
    moe_every=1,
    mtp=None,
    gated=True,
    vocab=248_320,
    tied=False,
    rms=True,
    latent=False,
    top_k=8,
    inner=None,
    bias=False,
    shared_gate=True,
    world=2,
    ep=2,
    etp=1,
    tp=1,
    pp=1,
    vpp=None,
    dp=2,
    distributed=True,
    sequence=97_377,
    micro=1,
    microbatches=1,
)


def formula(s):
    """Return weights with optimizer states, and activations, as the closed formula has them."""
    query = s.channels * s.heads / s.hidden
    gates = 3 / 2 if s.gated else 1
    experts = 1 if s.experts is None else s.experts
    shared = 0 if s.shared_ffn is None else s.shared_ffn
    dense, moe, extra_dense, extra_moe = kinds_of_layers(s)
    norm = 1 if s.rms else 2
    attention = 0 if s.latent else 2 * s.hidden * s.hidden * (1 + s.groups / s.heads) * query
    mlp = 2 * s.hidden * s.ffn * gates
    of_shared = 2 * s.hidden * shared * gates
    inner = s.hidden if s.inner is None else s.inner
    routed = 2 * inner * s.moe_ffn * experts * gates
    active = 2 * inner * s.moe_ffn * s.top_k * gates if s.experts is not None else 0
    down = 2 * s.hidden * s.inner if s.experts is not None and s.inner is not None else 0
    norms = 2 * s.hidden * norm
    router = s.hidden * experts + (experts if s.bias else 0) if s.experts is not None else 0
    gate = s.hidden if shared > 0 and getattr(s, "shared_gate", False) else 0
    rest = attention + of_shared + down + norms + router + gate
    of_dense = attention + mlp + norms
    embedding = s.hidden * s.vocab
    outer = embedding if s.tied else 2 * embedding
    final = norm * s.hidden
    extra = of_dense * extra_dense + (rest + routed) * extra_moe
    total = of_dense * dense + (rest + routed) * moe + final + extra + outer
    met = of_dense * dense + (rest + active) * moe + final + extra + outer
    edp = s.world // (s.etp * s.ep * s.pp)
    split = (attention + mlp) * dense + (attention + of_shared) * moe
    whole = norms * dense + (norms + down + router + gate) * moe + final
    split_extra = (attention + mlp) * extra_dense + (attention + of_shared) * extra_moe
    whole_extra = norms * extra_dense + (norms + down + router + gate) * extra_moe
    on_tp = (split / s.pp + split_extra + embedding) / s.tp
    on_all = whole / s.pp + whole_extra
    on_ep = (routed * moe / s.pp + routed * extra_moe) / (s.etp * s.ep)
    if not s.tied and s.pp == 1:
        on_tp += embedding / s.tp
    weights = (on_tp + on_all) * a_parameter(s, s.dp) + on_ep * a_parameter(s, edp)
    return weights, activations(s), total, met


def kinds_of_layers(s):
    kinds = [1 if layer % s.moe_every == 0 else 0 for layer in range(s.layers)]
    dense, moe = s.layers - sum(kinds), sum(kinds)
    if s.mtp is None:
        return dense, moe, 0, 0
    return dense, moe, (1 - kinds[-1]) * s.mtp, kinds[-1] * s.mtp


def a_parameter(s, copies):
    return 18 if not s.distributed else 6 + 12 / copies


def activations(s):
    total = s.sequence * s.micro * s.hidden * (10 + 24 / s.tp) * s.layers
    total += 8 * s.sequence * s.micro * s.pp
    total += s.sequence * s.micro * s.hidden * s.pp
    if s.vpp is not None:
        total *= 1 + (s.pp - 1) / (s.pp * s.vpp)
    if s.vpp is None and s.pp > 1:
        total *= min(1, s.microbatches / s.pp)
    if s.pp == 1:
        total += (s.sequence * s.micro * s.vocab / s.tp + s.sequence * s.micro * s.hidden) * 2
    return total * 1.05


def seconds(run):
    """Return CPU seconds of one call."""
    start = process_time()
    for _ in range(EACH):
        run()
    return (process_time() - start) / EACH


def compare(**runs):
    """Return the least CPU seconds of each, taken turn by turn."""
    taken = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            taken[name].append(seconds(run))
    return {name: min(times) for name, times in taken.items()}


def say(text):
    sys.stdout.write(f"\n{text}\n")


@pytest.mark.bench
@pytest.mark.parametrize("table", ["art-shared", "megatron-local"])
def test_a_price_and_a_decision(table):
    """Reference: the formula above, in the same process."""
    pricer = compile_pricer(qwen(), Topology(cp=2, ep=2), Step(), coefficients=table)
    batches = cycle([Batch(tokens=100_000 + 2 * more) for more in range(1000)])
    sample = MemorySample.alike(2, 10**13, held_tokens=194_816)
    batch = Batch(tokens=194_753)

    def summary():
        price = pricer.price(next(batches))
        return price.moments, price.terms, price.demand_bytes, price.retained_bytes

    def explained():
        price = pricer.price(next(batches))
        return price.moments, price.lines.expected, price.demand_bytes, price.retained_bytes

    times = compare(
        formula=lambda: formula(SETTINGS),
        summary=summary,
        explained=explained,
        decision=lambda: pricer.admit(batch, sample, allow_unpriced=True),
        decision_of_a_new_batch=lambda: pricer.admit(next(batches), sample, allow_unpriced=True),
    )
    unit = times["formula"]
    lines = len(pricer.price(batch).lines)
    say(
        f"{table}, {lines} lines: "
        + "; ".join(f"{name} {t * 1e6:.1f} µs = {t / unit:.2f} x" for name, t in times.items())
    )
    assert times["summary"] < PRICE_LIMIT * unit
    assert times["explained"] < PRICE_LIMIT * unit
    assert times["decision_of_a_new_batch"] < DECISION_LIMIT * unit


@pytest.mark.bench
def test_ten_thousand_topologies():
    """Reference: 100 microseconds a topology, 20 times the formula."""
    model = qwen(num_layers=48, full_attention_interval=1, linear_attention=None)
    batch, step = Batch(requests=[256] * 4096), Step(nvlink_ranks=64)
    places = [
        topology
        for world in (32, 64, 128, 256, 512, 1024, 2048, 4096)
        for topology in every_topology(world)
        if topology.pp == 1 and 256 % topology.ep == 0 and topology.tp <= 16 and topology.etp <= 16
    ]
    table = Coefficients.load("megatron-local")
    unit = compare(formula=lambda: formula(SETTINGS))["formula"]
    start = process_time()
    priced = list(islice(price_all(model, places, batch, 80 * 10**9, step, table), TOPOLOGIES))
    taken = process_time() - start
    each = taken / len(priced)
    say(
        f"{len(priced)} topologies: {taken:.2f} s, {each * 1e6:.1f} µs each = "
        f"{each / unit:.2f} x the formula"
    )
    assert len(priced) == TOPOLOGIES
    assert each < TOPOLOGY_LIMIT * unit


@pytest.mark.bench
def test_importing_the_planner():
    """Reference: 100 ms of CPU time, Python's own start left out."""
    code = "import time; t = time.process_time(); import planner; print(time.process_time() - t)"
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
            ).stdout
        )
        for _ in range(9)
    ]
    say(f"import planner: {median(times) * 1e3:.0f} ms")
    assert median(times) < 0.1
