"""One rank of a cell: set up, run the live loop, write a record whatever happens.

By hand, under torchrun's variables::

    torchrun --nproc-per-node=2 -m jobs.rank SPEC OUT
    python -m jobs.rank SPEC OUT                       # a cell of one rank
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jobs import outcome
from jobs.record import RankRecord, record_path, write_records
from jobs.resume import Resumed
from jobs.routing_file import routing_of
from jobs.spec import CellSpec
from planner.errors import ConfigError
from planner.pricer import Pricer, compile_pricer

THREADS = 1
"""Torch threads of a rank: ranks share the machine's cores, and reductions stay in one order."""

PACKAGES = ("torch", "megatron-core", "numpy", "peakcast", "transformer-engine", "deep-ep")
"""Packages whose versions a record names, where they are installed."""


def main(spec_path: Path, out: Path, attempt: int, rendezvous: str) -> None:
    """Run one rank; raises what went wrong, after recording it.

    Parameters
    ----------
    rendezvous
        URL at which the ranks meet (``file://``, ``tcp://``, or torchrun's ``env://``).
    """
    spec = CellSpec.read(spec_path)
    rank, world = _place(spec)
    path = record_path(out, spec.key, attempt, rank)
    resumed = Resumed.of(spec, out, attempt, rank)
    done = dict(resumed.done)

    def keep(record: RankRecord) -> None:
        if record.call in spec.calls.recorded or record.outcome != "ok":
            done[record.call] = record
            write_records(path, [done[call] for call in sorted(done)])

    snapshots = out / "snapshots" / path.stem
    _run(spec, rank, world, attempt, rendezvous, resumed, keep, snapshots)


def _place(spec: CellSpec) -> tuple[int, int]:
    """Read this process's place from torchrun's variables; return its rank and the world's size.

    The n-th process is the n-th of the cell's ranks, of which a fake cell may run a few only.
    """
    place, started = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if started != len(spec.ranks):
        raise ConfigError(
            f"this cell ({spec.label}) runs {len(spec.ranks)} ranks, {started} were started; run "
            f"torchrun --nproc-per-node={len(spec.ranks)} -m jobs.rank SPEC OUT"
        )
    return spec.ranks[place], spec.topology.world


def _run(
    spec: CellSpec,
    rank: int,
    world: int,
    attempt: int,
    rendezvous: str,
    resumed: Resumed,
    keep: Callable[[RankRecord], None],
    snapshots: Path,
) -> None:
    """Set up, run every call, and turn an error into a record before it goes on."""
    if spec.backend == "cuda":  # before Megatron is imported, for what follows imports it
        from jobs.backend import cuda

        cuda.install()
    from jobs.live import RecordBase

    base = RecordBase(spec, attempt, rank, environment() | {"resumed": resumed.times})
    call, loop = resumed.first, None
    try:
        pricer = pricer_of(spec)  # before the ranks meet: bad input is one clear error
        with _ranks(spec, rank, world, rendezvous, snapshots) as ranks:
            loop = ranks.loop(pricer, base)
            call = loop.agree_on_first(resumed.first) if resumed.times else 0
            again, left = resumed.calls(spec, call)
            for earlier in again:
                loop.call(earlier)
            for call in left:
                record = loop.call(call)
                keep(record)
                if record.outcome == "refused":
                    break  # what does not fit will not fit the next time
    except BaseException as error:
        if call < spec.calls.recorded.stop and call not in resumed.done:  # what stands, stands
            keep(_cut_short(base, call, loop, error))
        raise


def _ranks(spec: CellSpec, rank: int, world: int, rendezvous: str, snapshots: Path) -> Any:
    """Return what sets a rank up and tears it down, on the cell's backend."""
    if spec.backend == "cuda":
        from jobs.cuda.rank import CudaRanks

        return CudaRanks(spec, rank, world, rendezvous, snapshots)
    return (_FakeRank if spec.backend == "fake" else _Ranks)(spec, rank, world, rendezvous)


def _cut_short(base: Any, call: int, loop: Any, error: BaseException) -> RankRecord:
    """Return the record of a call that ``error`` ended, with what was seen until then."""
    words, parts = f"{type(error).__name__}: {error}", {}
    try:
        parts = {} if loop is None else loop.cut_short()
    except Exception as second:
        words += f"; what was seen until then is lost to {type(second).__name__}: {second}"
    return base.of(call, outcome.of_error(error), error=words, **parts)


def pricer_of(spec: CellSpec) -> Pricer:
    """Compile the cell's pricer with what is known of its routing."""
    return compile_pricer(
        spec.model,
        spec.topology,
        spec.step,
        coefficients=spec.coefficients,
        routing=routing_of(spec),
    )


class _Ranks:
    """The process groups of a cell for as long as it runs."""

    def __init__(self, spec: CellSpec, rank: int, world: int, rendezvous: str) -> None:
        self.spec, self.rank, self.world, self.rendezvous = spec, rank, world, rendezvous

    def __enter__(self) -> "_Ranks":
        import torch

        from jobs.backend import cpu

        torch.set_num_threads(THREADS)
        cpu.install()
        cpu.start(self.rank, self.world, self.spec.topology, self.rendezvous)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        from jobs.backend import cpu

        if error is None:  # after an error a barrier would wait for ranks that may be gone
            cpu.stop()

    def loop(self, pricer: Pricer, base: Any) -> Any:
        """Build the model, set its weights, and put it under the ledger."""
        from jobs.live import LiveLoop
        from jobs.meter.ledger import Ledger
        from jobs.model.build import build_model
        from jobs.model.weights import load_weights

        model = build_model(self.spec)
        load_weights(model, self.spec)
        ledger = Ledger() if self.spec.meter.ledger else None
        if ledger is not None:
            ledger.attach(model)
        return LiveLoop(self.spec, self.rank, model, pricer, ledger, base)


class _FakeRank(_Ranks):
    """One process that acts as a rank, on fake tensors, for as long as it runs."""

    def __enter__(self) -> "_FakeRank":
        import torch

        from jobs.backend import fake

        torch.set_num_threads(THREADS)
        self.mode = fake.start(self.rank, self.spec.topology)
        self.mode.__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        from jobs.backend import fake

        self.mode.__exit__(None, None, None)
        fake.stop()

    def loop(self, pricer: Pricer, base: Any) -> Any:
        """Build the model, its weights without values, and put it under the ledger."""
        from jobs.fake_live import FakeLoop
        from jobs.meter.ledger import Ledger
        from jobs.model.build import build_model

        model = build_model(self.spec)
        ledger = Ledger()
        ledger.attach(model)
        return FakeLoop(self.spec, self.rank, model, pricer, ledger, base)


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge a record: host, process, versions of what is there."""
    found = {
        "host": platform.node(),
        "pid": os.getpid(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "threads": THREADS,
    }
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # run from its folder, or no part of this machine
            found[name] = version(name)
    return found


def run() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m jobs.rank", description=__doc__)
    parser.add_argument("spec", type=Path, help="the cell's spec file")
    parser.add_argument("out", type=Path, help="folder of the sweep; records go to OUT/records")
    parser.add_argument("--attempt", type=int, default=0, help="number of this attempt")
    arguments = parser.parse_args()
    if "MASTER_ADDR" in os.environ:  # torchrun's: its agent keeps the store that ranks meet at
        main(arguments.spec, arguments.out, arguments.attempt, "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{folder}/rendezvous"
        main(arguments.spec, arguments.out, arguments.attempt, rendezvous)


if __name__ == "__main__":
    run()
