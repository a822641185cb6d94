"""One rank that runs small models by our own layers and by Transformer Engine's, side by side.

``python te_ranks.py RANK WORLD FOLDER`` writes ``FOLDER/result.RANK.json``: for each case and
engine what the ledger saw and the planner said, the loss, and how far gradients lie apart.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import te_kernels
import torch

from jobs.backend import cuda
from jobs.spec import CellSpec
from planner.model import Model
from planner.pricer import compile_pricer
from planner.routing import Routing
from tests.jobs.small_cells import MODEL, TOPOLOGIES, cell

DEVICE = torch.device("cuda", 0)
ATTENTION = {"num_heads": 8, "head_dim": 64, "expert_hidden": 8, "hidden": 64}
MODELS = {
    "every expert": replace(MODEL, top_k=8),  # so that no rounding sends a token elsewhere
    "trained": replace(MODEL, top_k=8),
    "experts": replace(MODEL, top_k=4),
    "attention": replace(MODEL, **ATTENTION, shared_expert_hidden=8),
    "gated": replace(MODEL, **ATTENTION, shared_expert_hidden=8, gated_attention=True),
}
SHORT, LONG = (300, 500, 220), (1000, 2000, 300, 1900)
CASES = {
    1: [("ep1_cp1", name, None) for name in MODELS],
    2: [
        *(("ep1_cp2", name, None) for name in MODELS),
        ("ep2_cp1", "experts", None),
        ("ep2_cp1", "experts", ((), (0, 1, 2))),
    ],
}
"""For each number of ranks: topology, model, and each replica's requests where they are set."""


def spec_of(
    topology: str, model: Model, engine: str, requests: tuple[int, ...], lora_rank: int = 4
) -> CellSpec:
    """Return a cell on CUDA devices, all-to-all."""
    step = {"dtype": "bf16", "dispatcher": "alltoall", "device": "cuda", "lora_rank": lora_rank}
    made = cell(topology, requests, model, **step)
    return replace(made, backend="cuda", step=replace(made.step, engine=engine))


def build(spec: CellSpec) -> Any:
    """Return this rank's model on the device, weights drawn."""
    from jobs.model.build import build_model
    from jobs.model.weights import load_weights

    cuda.require_device(spec.step, spec.topology)
    with DEVICE:
        model = build_model(spec)
    cuda.place_dispatchers(model, DEVICE)
    load_weights(model, spec)
    return model


def run(spec: CellSpec, rank: int, replicas: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Run one call; return its figures, and gradients by global name."""
    from jobs.meter.ledger import Ledger
    from jobs.meter.rules import attribute_peak
    from jobs.model.build import routed_rows
    from jobs.model.gradients import reduce_gradients
    from jobs.model.names import global_parameters
    from jobs.workload import local_batch

    model = build(spec)
    workspace = cuda.load_libraries(DEVICE, spec.step.engine)
    requests = None if replicas is None else replicas[spec.topology.dp_rank(rank)]
    batch = local_batch(spec, rank, 0, requests)
    names = ("tokens", "targets", "positions")
    batch = replace(batch, **{name: getattr(batch, name).to(DEVICE) for name in names})
    ledger = Ledger("cuda")
    ledger.attach(model)
    for name in names:
        ledger.register(f"batch.{name}", getattr(batch, name))
    with ledger.call() as call:
        loss = model(batch)
        call.forward_done()
        loss.backward()
    reduce_gradients(model)
    gradients = {
        named.name: named.gradient.float().cpu()
        for named in global_parameters(model)
        if named.parameter.requires_grad
    }
    seen = call.result
    given = attribute_peak(seen, spec.model, spec.step, [len(batch.tokens)], spec.topology)
    figures = {
        "loss": float(loss.detach()),
        "rows": routed_rows(model),
        "observed": seen.working_set_bytes,
        "at": seen.peak_at,
        "terms": given.terms,
        "unattributed": given.unattributed_bytes,
        "workspace": workspace,
    }
    return figures, gradients


def priced(spec: CellSpec, rank: int) -> dict[str, Any]:
    """Return the planner's side."""
    routing = Routing.balanced()
    pricer = compile_pricer(
        *(spec.model, spec.topology, spec.step), coefficients=spec.coefficients, routing=routing
    )
    price = pricer.price_ranks(spec.workload.batch())[rank]
    return {
        "expected": price.expected_bytes,
        "bound": price.bound_bytes,
        "planned": {name: int(size) for name, size in price.terms.items()},
        "moment": str(price.peak_moment),
        "unpriced": [str(part) for part in price.unpriced],
    }


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest error of a gradient relative to its norm."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).norm() / b[name].norm()) for name in a)


def attended(engine: str, topology: str, dtype: str) -> list[torch.Tensor]:
    """Return output and gradients of core attention alone, of drawn inputs."""
    from jobs.model.build import build_model
    from jobs.workload import local_batch

    made = spec_of(topology, MODEL, engine, SHORT)
    spec = replace(made, step=replace(made.step, dtype=dtype))
    with DEVICE:
        attention = build_model(spec).decoder.layers[0].self_attention.core_attention
    rank = torch.distributed.get_rank()
    layout = local_batch(spec, rank, 0).layout
    draw = torch.Generator().manual_seed(rank)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).bfloat16().to(kind).to(DEVICE)

    heads = (MODEL.num_heads, MODEL.num_kv_heads, MODEL.num_kv_heads)
    inputs = [drawn(layout.tokens, 1, n, MODEL.head_dim).requires_grad_() for n in heads]
    out = attention(*inputs, None, packed_seq_params=layout)
    out.backward(drawn(*out.shape))
    return [x.detach().float().cpu() for x in (out, *(x.grad for x in inputs))]


def loaded_alike(folder: Path) -> bool:
    """Save by our own layers, load into Transformer Engine's: whether all weights are the same."""
    from jobs.model.hf_files import load_pretrained, save_pretrained
    from jobs.model.names import global_parameters

    own = build(spec_of("ep1_cp1", MODEL, "own", SHORT))
    save_pretrained(own.cpu(), MODEL, folder / "saved")
    other = spec_of("ep1_cp1", MODEL, "te", SHORT)
    theirs = build(replace(other, weights=replace(other.weights, seed=1)))
    load_pretrained(theirs, MODEL, folder / "saved")
    of_own, of_theirs = (
        {n.name: n.data.cpu() for n in global_parameters(m) if ".lora_" not in n.name}
        for m in (own, theirs)
    )
    return of_own.keys() == of_theirs.keys() and all(
        torch.equal(of_own[name], of_theirs[name]) for name in of_own
    )


def main() -> None:
    """Run this rank's cases."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    cuda.install()
    te_kernels.install()
    first = CASES[world][0][0]
    result: dict[str, Any] = {"cases": []}
    for topology in dict.fromkeys(case[0] for case in CASES[world]):
        meet = f"file://{folder}/{topology}"
        cuda.start(rank, world, TOPOLOGIES[topology], meet, DEVICE)
        for _, model, replicas in (case for case in CASES[world] if case[0] == topology):
            both: dict[str, Any] = {"topology": topology, "model": model, "replicas": replicas}
            gradients = {}
            for engine in ("own", "te"):
                requests = LONG if model in ("attention", "gated") else SHORT
                lora_rank = 0 if model == "trained" else 4
                spec = spec_of(topology, MODELS[model], engine, requests, lora_rank)
                figures, gradients[engine] = run(spec, rank, replicas)
                both[engine] = figures | priced(spec, rank)
            both["distance"] = distance(gradients["te"], gradients["own"])
            result["cases"].append(both)
        if topology == first:
            exact = attended("own", topology, "fp32")
            result["attention"] = {
                engine: [
                    float((a - b).norm() / b.norm())
                    for a, b in zip(attended(engine, topology, "bf16"), exact, strict=True)
                ]
                for engine in ("own", "te")
            }
        if world == 1:
            result["loaded"] = loaded_alike(folder)
        cuda.stop()
    (folder / f"result.{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
