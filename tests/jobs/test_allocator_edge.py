"""The least device: where a traced call is served and where it is not, beside what is set aside."""

from dataclasses import replace

import pytest
from fake_worker import spec_of

from jobs.allocator.edge import NEAR, least_device
from jobs.allocator.replay import ledger_steps, replay
from jobs.allocator.rules import DeviceFullError, Settings
from jobs.allocator.steps import Ask, End
from jobs.spec import Workload
from planner.fragments import fragments_of
from planner.units import GIB, MIB

KINDS = (Settings(), Settings(expandable=True))


def steps_of(tokens: int) -> list:
    """What two calls of a small model ask an allocator for, without weights."""
    import torch

    from jobs.backend import fake

    spec = spec_of("ep1_cp1 alltoall", "fake")
    model = replace(spec.model, num_layers=4, full_attention_interval=4)
    spec = replace(spec, model=model, workload=Workload(name="w", requests=(tokens,)))
    torch.set_num_threads(1)
    try:
        with fake.start(0, spec.topology):
            from jobs.fake_live import FakeLoop
            from jobs.live import RecordBase
            from jobs.meter.ledger import Ledger
            from jobs.model.build import build_model
            from jobs.rank import pricer_of

            model = build_model(spec)
            ledger = Ledger()
            ledger.attach(model)
            loop = FakeLoop(spec, 0, model, pricer_of(spec), ledger, RecordBase(spec, 0, 0, {}))
            seen = []
            for call in range(2):
                loop.call(call)
                seen += loop.seen.allocations
    finally:
        fake.stop()
    return list(ledger_steps(seen))


@pytest.fixture(scope="module")
def steps() -> list:
    """Of 65,536 tokens: GiB, where segments matter and not the pool's first ones."""
    return steps_of(65_536)


@pytest.mark.parametrize("settings", KINDS)
def test_the_edge_divides_devices(steps, settings) -> None:
    """Definition: all is served at the edge, and not a little below it."""
    edge = least_device(steps, settings)
    replay(steps, replace(settings, device_bytes=edge))
    with pytest.raises(DeviceFullError):
        replay(steps, replace(settings, device_bytes=edge - 2 * NEAR))


@pytest.mark.parametrize("settings", KINDS)
def test_what_is_set_aside_covers_the_edge(steps, settings) -> None:
    """Law: a device on which the planner counts on the bytes in use at most serves the calls."""
    live = replay(steps).allocated_peak_bytes
    assert live > GIB
    kind = fragments_of(expandable=settings.expandable)
    room = live + kind.lost(live) + 1
    assert kind.usable(room) >= live - 1
    assert least_device(steps, settings) <= room


def test_fixed_segments_lose_what_expandable_ones_do_not() -> None:
    """Derivation: of each 40 MiB segment that 22 MiB are cut from, 18 MiB serve no 30 MiB.

    Ten of them and six requests of 30 MiB take 580 MiB; one segment of pages takes 400 MiB.
    """
    steps = [
        *(Ask(n, 40 * MIB) for n in range(10)),
        *(End(n) for n in range(10)),
        *(Ask(("cut", n), 22 * MIB) for n in range(10)),
        *(Ask(("new", n), 30 * MIB) for n in range(6)),
    ]
    fixed, expandable = (least_device(steps, settings) for settings in KINDS)
    assert 580 * MIB <= fixed <= 580 * MIB + NEAR
    assert 400 * MIB <= expandable <= 400 * MIB + NEAR
