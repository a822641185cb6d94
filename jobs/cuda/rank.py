"""A rank on a CUDA device: its place, its meters, its model, for as long as it runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jobs.backend import cuda
from jobs.cuda.live import CudaLoop, current_buffers
from jobs.meter.cuda import DeviceMeter, SetUp
from jobs.meter.cuda_device import open_device
from jobs.meter.ledger import Ledger
from jobs.model.build import build_model
from jobs.model.weights import load_weights
from jobs.spec import CellSpec
from planner.pricer import Pricer


class CudaRanks:
    """The process groups of a cell on CUDA devices, and this rank's device.

    Parameters
    ----------
    snapshots
        Folder for allocator histories.
    """

    def __init__(
        self, spec: CellSpec, rank: int, world: int, rendezvous: str, snapshots: Path
    ) -> None:
        self.spec, self.rank, self.world = spec, rank, world
        self.rendezvous, self.snapshots = rendezvous, snapshots

    def __enter__(self) -> "CudaRanks":
        cuda.require_device(self.spec.step, self.spec.topology)
        self.device = cuda.device_of(self.rank, torch.cuda.device_count())
        self.probes, before = open_device(self.device)
        cuda.start(self.rank, self.world, self.spec.topology, self.rendezvous, self.device)
        taken = cuda.connect(self.device, self.probes.used)
        if self.spec.step.engine == "te":
            taken |= cuda.connect_ring(self.device, self.probes.used)
        self.set_up = SetUp(
            foreign_bytes=before.foreign_bytes,
            context_bytes=before.context_bytes,
            nccl_bytes=taken,
        )
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            cuda.stop()
        else:
            cuda.leave_soon()

    def loop(self, pricer: Pricer, base: Any) -> CudaLoop:
        """Build the model on the device, set its weights, and put it under the meters."""
        with self.device:  # what Megatron's constructors make without a word
            model = build_model(self.spec)
        cuda.place_dispatchers(model, self.device)
        load_weights(model, self.spec)
        workspace = cuda.load_libraries(self.device, self.spec.step.engine)
        torch.cuda.empty_cache()  # scratch of drawing and loading
        ledger = None
        if self.spec.meter.ledger:
            ledger = Ledger(self.device.type)
            ledger.attach(model)
        set_up = replace(self.set_up, workspace_bytes=workspace)
        meter = DeviceMeter(self.probes, set_up, lambda: current_buffers().nbytes)
        return CudaLoop(
            *(self.spec, self.rank, model, pricer, ledger, base),
            device=self.device,
            meter=meter,
            snapshots=self.snapshots,
        )
