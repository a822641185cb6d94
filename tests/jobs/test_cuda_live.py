"""The CUDA loop, driven on CPU tensors with a device that a test plays."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_cells import cell
from test_cuda_meter import MIB, SET_UP, Device

from jobs.backend import cuda, patches
from jobs.record import RankRecord, read_records, record_path
from jobs.spec import Calls, Meter
from planner import Step, Topology, compile_pricer
from planner.errors import ConfigError


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[RankRecord]:
    """Two calls of a small cell, then one that runs out of memory, as a CUDA rank makes them.

    The device is the CPU, and what asks CUDA itself is answered by `Device`.
    """
    from jobs.backend import cpu
    from jobs.cuda import rank as cuda_rank
    from jobs.live import RecordBase

    folder = tmp_path_factory.mktemp("cuda")
    spec = replace(cell(requests=(64, 64)), meter=Meter(budget_gib=1.0))
    device, patch = Device(), pytest.MonkeyPatch()
    patch.setattr(cuda_rank, "open_device", lambda _: (device.probes(), SET_UP))
    for name, answer in {
        "require_device": lambda *_: None,
        "device_of": lambda *_: torch.device("cpu"),
        "start": lambda *args: cpu.start(*args[:-1]),
        "stop": cpu.stop,
    }.items():
        patch.setattr(cuda, name, answer)
    patch.setattr(torch.cuda, "synchronize", lambda *_: None)
    torch.set_num_threads(1)
    pricer = compile_pricer(spec.model, spec.topology, spec.step, coefficients=spec.coefficients)
    with cuda_rank.CudaRanks(spec, 0, 1, f"file://{folder}/rendezvous", folder) as ranks:
        loop = ranks.loop(pricer, RecordBase(spec, 0, 0, {}))
        layers = loop.model.decoder.layers
        layers[0].register_forward_pre_hook(lambda *_: device.take(MIB, 2 * MIB))
        found = [loop.call(0), loop.call(1)]
        layers[1].register_forward_pre_hook(_starve)
        with pytest.raises(torch.OutOfMemoryError):
            loop.call(2)
        found.append(loop.record.of(2, "oom-device", **loop.cut_short()))
    patch.undo()
    return found


def _starve(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")


def test_a_record_has_the_device_s_figures_beside_the_ledger_s(records) -> None:
    """Reference: what the played device took: a MiB each time that the first layer ran."""
    for record in records[:2]:
        device = record.observed.device
        times = (device["allocated_end_bytes"] - device["allocated_before_bytes"]) // MIB
        assert times == 2, "forward, and recompute in backward"
        assert device["reserved_peak_bytes"] - device["reserved_before_bytes"] == 4 * MIB
        assert device["nccl_bytes"] == {}, "one rank has no communicator"
        assert device["context_bytes"] == SET_UP.context_bytes
        assert device["workspace_bytes"] == 0, "the CPU's libraries keep none"
        assert device["snapshot"] == ""
        assert RankRecord.from_line(record.to_line()).to_line() == record.to_line()
        assert json.loads(record.to_line())["observed"]["device"]["readings"] >= 2


def test_reserved_bytes_are_replayed_from_the_ledger(records) -> None:
    """Law: what is reserved holds at least what was live, and here not far more."""
    for record in records:
        seen = record.observed
        live = seen.baseline_bytes + seen.peak_bytes
        assert seen.device["replayed_reserved_bytes"] >= live
        assert seen.device["replayed_reserved_bytes"] < live + 60 * MIB


def test_a_call_that_ran_out_of_memory_keeps_both_peaks(records) -> None:
    """Reference: the second layer failed in forward: the first one had run once."""
    seen = records[2].observed
    device = seen.device
    assert device["allocated_peak_bytes"] - device["allocated_before_bytes"] == MIB
    assert 0 < seen.working_set_bytes < records[1].observed.working_set_bytes
    assert records[2].planned.expected_bytes == records[1].planned.expected_bytes


def test_what_a_device_cannot_do_is_refused_with_the_way_out(monkeypatch) -> None:
    """Reference: flash attention has no fp32; DeepEP and Transformer Engine are not installed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(ConfigError, match=r"backend:cudaMallocAsync.*take backend:native"):
        cuda.require_device(Step(), Topology())
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    with pytest.raises(ConfigError, match=r"step\.dtype=bf16"):
        cuda.require_device(Step(dtype="fp32"), Topology())
    monkeypatch.setattr(cuda, "has_hybridep", lambda: False)
    with pytest.raises(ConfigError, match=r"set step\.dispatcher=alltoall"):
        cuda.require_device(Step(), Topology(dp=2, ep=2))
    monkeypatch.setattr(patches, "has_transformer_engine", lambda: False)
    with pytest.raises(ConfigError, match=r"set step\.engine=own"):
        cuda.require_device(Step(engine="te"), Topology())
    cuda.require_device(Step(), Topology())
    cuda.require_device(Step(dispatcher="alltoall"), Topology(dp=2, ep=2))


def test_ranks_take_the_device_of_their_place(monkeypatch) -> None:
    """Reference: LOCAL_RANK of torchrun and submitit, SLURM_LOCALID of srun; one device shown."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    assert cuda.device_of(5, 4) == torch.device("cuda", 1)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert cuda.device_of(5, 4) == torch.device("cuda", 3)
    assert cuda.device_of(5, 1) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert cuda.device_of(5, 4) == torch.device("cuda", 2)


def test_a_model_built_on_a_device_computes_there(run_ranks) -> None:
    """Reference: the meta device, which no CPU tensor may meet: forward, recompute, backward."""
    (found,) = run_ranks("device_worker.py", 1)
    assert found == {
        "backend": "cuda",
        "parameters": ["meta"],
        "gradients": ["meta"],
        "host": [],
        "tables": ["meta", "meta"],
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_the_rank_s_record_says_so(tmp_path: Path) -> None:
    """Reference: a rank as a person starts it, Megatron imported without what CPUs need."""
    spec = replace(cell(dtype="bf16"), backend="cuda", calls=Calls(name="one", measured=1))
    spec.write(tmp_path / "spec.json")
    command = [sys.executable, "-m", "jobs.rank", str(tmp_path / "spec.json"), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode
    (record,) = read_records(record_path(tmp_path, spec.key, 0, 0))[0]
    assert record.outcome == "error"
    assert "backend = cuda needs a CUDA device" in record.error
    assert "meter=fake" in record.error
