"""How much memory fragments cost.

``python docs/experiments/fragments.py > docs/experiments/fragments.md`` draws cells (model, layers,
tokens, topology, dispatcher), runs a few calls of each on fake ranks, of one size or of sizes that
vary, and finds the least device on which PyTorch's allocator serves them. It writes the page, with
what `planner.fragments` sets aside beside what was lost: in cells drawn before its figures were
set, and in cells drawn afterwards.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch

from jobs.allocator.edge import least_device
from jobs.allocator.replay import ledger_steps, replay
from jobs.allocator.rules import Settings
from jobs.allocator.steps import Step as Served
from jobs.backend import fake
from jobs.meter.allocation import block_bytes
from jobs.rank import pricer_of
from jobs.spec import Calls, CellSpec, Meter, Weights, Workload
from pipeline.config import topology_name
from pipeline.named import named_model
from planner.fragments import fragments_of
from planner.step import Step
from planner.topology import Topology
from planner.units import GIB

MODELS = ("qwen3_6_35b_a3b", "qwen3_30b_a3b")
LAYERS = (2, 4, 8, 12, 24)
TOKENS = (4096, 8192, 16_384, 32_768, 49_152, 65_536)
PLACES = (
    (Topology(), "alltoall"),
    (Topology(cp=2), "alltoall"),
    (Topology(dp=2, ep=2), "hybridep"),
    (Topology(cp=2, ep=2), "hybridep"),
    (Topology(dp=2, ep=2), "alltoall"),
    (Topology(dp=2, cp=2, ep=4), "hybridep"),
    (Topology(dp=4, cp=2, ep=8), "hybridep"),
    (Topology(dp=8, ep=8), "alltoall"),
)
DRAWS = {"before": (1, 2, 3), "afterwards": (4,)}
"""Seeds of the draws, by whether the planner's figures were set before or after them."""

HEAD = """# Fragments: memory that is free and cannot be handed out

Written by `python docs/experiments/fragments.py > docs/experiments/fragments.md` on {date}.
Cells of random draws on fake ranks, three calls of one size or five whose last is the largest; the
allocator is simulated by PyTorch 2.14's rules, which `tests/emulated/test_allocator.py` holds
against PyTorch's own, step by step. Lost: the least device that serves all calls, less the bytes in
use at most.

| model | layers | topology | tokens a rank | call, GiB | lost, fixed segments | lost, expandable |
|---|--:|---|--:|--:|--:|--:|
"""

TAIL = """
With the allocator's default settings a call of 20 GiB inside PyTorch needs up to 6 GiB more on the
device, with `PYTORCH_ALLOC_CONF=expandable_segments:True` under 1 GiB. `planner.fragments` sets
that aside before a call is admitted on a device. On PyTorch's own allocator a call that its bound
alone would admit ran out of memory, and one that was admitted ran
(`tests/emulated/test_full_scale.py`). A trainer that runs long, with shapes that vary more, may
lose more: case M12 lost 36 % (`planner/outside.py`).
"""

ALLOCATORS = {"fixed": Settings(), "expandable": Settings(expandable=True)}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A cell, and the tokens of a rank in each of its calls; the last is the largest."""

    spec: CellSpec
    tokens: tuple[int, ...]


def draw(rng: random.Random) -> Drawn:
    """Draw a cell."""
    model = replace(named_model(rng.choice(MODELS)), num_layers=rng.choice(LAYERS))
    most, (topology, dispatcher) = rng.choice(TOKENS), rng.choice(PLACES)
    smaller = [8 * rng.randrange(most // 32, most // 8) for _ in range(4)]
    tokens = (*smaller, most) if rng.random() < 0.6 else (most, most, most)
    return Drawn(spec_of(model, topology, dispatcher, most), tokens)


def spec_of(model, topology: Topology, dispatcher: str, tokens: int) -> CellSpec:
    """Return a fake cell of ``tokens`` a rank."""
    return CellSpec(
        model=model,
        topology=topology,
        topology_name=topology_name(topology),
        step=Step(dispatcher=dispatcher),
        weights=Weights(name="even"),
        workload=Workload(name="even", requests=(tokens * topology.cp,) * topology.dp),
        calls=Calls(name="several", measured=2),
        meter=Meter(allow_unpriced=True, ranks=(0,)),
        backend="fake",
        coefficients="megatron-local",
    )


def served(drawn: Drawn) -> tuple[list[Served], int]:
    """Run a cell's calls; return what its allocator is asked for, and the largest call's bytes."""
    spec = drawn.spec
    with fake.start(0, spec.topology):
        from jobs.fake_live import FakeLoop
        from jobs.live import RecordBase
        from jobs.meter.ledger import Ledger
        from jobs.model.build import build_model

        model = build_model(spec)
        ledger = Ledger()
        ledger.attach(model)
        loop = FakeLoop(spec, 0, model, pricer_of(spec), ledger, RecordBase(spec, 0, 0, {}))
        allocations = []
        for call, tokens in enumerate(drawn.tokens):
            loop.spec = spec_of(spec.model, spec.topology, spec.step.dispatcher, tokens)
            loop.batch = loop.spec.workload.batch()
            record = loop.call(call)
            allocations += loop.seen.allocations
        weights = [block_bytes(p.numel() * p.element_size()) for p in model.parameters()]
    fake.stop()
    return list(ledger_steps(allocations, weights)), record.observed.working_set_bytes


def measured(seed: int, count: int) -> Iterator[tuple[Drawn, int, dict[str, int]]]:
    """Yield cells, the bytes of their largest call, and what each allocator loses to fragments."""
    rng = random.Random(seed)
    for _ in range(count):
        drawn = draw(rng)
        steps, call = served(drawn)
        live = replay(steps).allocated_peak_bytes
        yield drawn, call, {k: least_device(steps, s) - live for k, s in ALLOCATORS.items()}


def row(drawn: Drawn, call: int, fragments: dict[str, int]) -> str:
    """Return a cell's line of the table."""
    spec, sizes = drawn.spec, sorted(set(drawn.tokens))
    tokens = f"{sizes[0]:,} to {sizes[-1]:,}" if len(sizes) > 1 else f"{sizes[0]:,}"
    lost = " | ".join(f"{fragments[k] / GIB:.2f} ({fragments[k] / call:.1%})" for k in ALLOCATORS)
    what = f"{spec.model.name} | {spec.model.num_layers} | {spec.topology_name}"
    return f"| {what} {spec.step.dispatcher} | {tokens} | {call / GIB:.2f} | {lost} |\n"


def main(count: int = 18) -> None:
    """Write the page, ``count`` cells a draw."""
    torch.set_num_threads(1)
    sys.stdout.write(HEAD.format(date=datetime.now(UTC).date().isoformat()))
    cells = {when: [] for when in DRAWS}
    for when, seeds in DRAWS.items():
        for drawn, call, fragments in (cell for seed in seeds for cell in measured(seed, count)):
            sys.stdout.write(row(drawn, call, fragments))
            sys.stdout.flush()
            cells[when].append((call, fragments))
    sys.stdout.write("\n")
    for name, settings in ALLOCATORS.items():
        aside = fragments_of(expandable=settings.expandable)
        above = {
            when: f"{sum(lost[name] > aside.lost(call) for call, lost in found)} of {len(found)}"
            for when, found in cells.items()
        }
        sys.stdout.write(
            f"- {name}: {aside.permille / 10:g} % of the call and {aside.nbytes / GIB:.2f} GiB are "
            f"set aside. More was lost in {above['before']} cells drawn before these figures were "
            f"set, and in {above['afterwards']} drawn afterwards.\n"
        )
    sys.stdout.write(TAIL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
