"""A whole step of the model as the CUDA backend builds it, on the meta device; ``RANK FOLDER``.

Meta tensors have a device of their own and no values: an operator that meets one beside a CPU
tensor raises. What CUDA itself would answer is answered here; nothing that CPU ranks need is
installed.
"""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
HOST = torch.empty(0, dtype=torch.uint8)


class Stream:
    """A stream on which all is done at once."""

    def wait_stream(self, stream: object) -> None: ...

    def record_event(self) -> "Stream":
        return self

    def synchronize(self) -> None: ...


class OnTheHost(TorchDispatchMode):
    """Notes operators that return tensors on the CPU with something in them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.numel():
                self.found.add(str(func))
        return out


def pretend() -> None:
    """Answer for CUDA where Megatron asks it."""
    stream = Stream()
    torch.cuda.current_device = lambda: META
    torch.cuda.Stream = torch.cuda.current_stream = lambda *_: stream
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.get_rng_state = lambda *_: HOST
    torch.cuda.manual_seed = lambda _: None
    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state = lambda **_: HOST
    random._set_cuda_rng_state = lambda *_, **__: None


def main(folder: Path) -> None:
    from jobs.backend import cpu, cuda

    cuda.install()
    pretend()
    from small_cells import MODEL, cell

    from jobs import backend
    from jobs.backend.fake import PlannedRouting
    from jobs.fake_live import plan_of
    from jobs.model.build import build_model
    from jobs.workload import local_batch
    from planner.mixers import LinearAttention

    mixer = LinearAttention(key_heads=2, key_dim=16, value_heads=4, value_dim=16, conv_width=4)
    hybrid = dataclasses.replace(
        MODEL, full_attention_interval=2, gated_attention=True, linear_attention=mixer
    )
    spec = cell(model=hybrid, dtype="bf16")
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    cpu.make_groups(spec.topology)
    with META:
        model = build_model(spec)
    cuda.place_dispatchers(model, META)
    batch = local_batch(spec, 0, 0)
    moved = {n: getattr(batch, n).to(META) for n in ("tokens", "targets", "positions")}
    batch = dataclasses.replace(batch, **moved)
    routing = PlannedRouting(plan_of(dataclasses.replace(spec, backend="fake")), spec.topology, 0)
    routing.install(model)
    routing.begin(0, (len(batch.tokens),))
    with OnTheHost() as host:
        loss = model(batch)
        loss.backward()
    result = {
        "backend": backend.chosen(),
        "parameters": sorted({p.device.type for p in model.parameters()}),
        "gradients": sorted({p.grad.device.type for p in model.parameters() if p.requires_grad}),
        "host": sorted(host.found),
        "tables": [
            layer.mlp.token_dispatcher.sort_input_by_local_experts.device.type
            for layer in model.decoder.layers
        ],
    }
    (folder / "result.0.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[2]))
