"""Cells of a small fp32 model, shared by the tests that run it."""

from jobs.spec import Calls, CellSpec, Weights, Workload
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

MODEL = Model(
    name="small",
    num_layers=2,
    hidden=128,
    vocab=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_experts=8,
    top_k=2,
    expert_hidden=32,
    shared_expert_hidden=32,
    shared_expert_gate=True,
)

TOPOLOGIES = {
    "ep1_cp1": Topology(),
    "ep1_cp2": Topology(cp=2),
    "ep2_cp1": Topology(dp=2, ep=2),
    "ep2_cp2": Topology(cp=2, ep=2),
    "ep4_cp1": Topology(dp=4, ep=4),
    "ep4_cp2": Topology(dp=2, cp=2, ep=4),
}


def cell(
    topology: str = "ep1_cp1",
    requests: tuple[int, ...] = (24, 33, 16, 31),
    model: Model = MODEL,
    weights: Weights | None = None,
    **step: object,
) -> CellSpec:
    """A cell with adapters and recompute, in fp32 unless said otherwise."""
    settings = {"dtype": "fp32", "lora_rank": 4, "head_chunk": 10, **step}
    return CellSpec(
        model=model,
        topology=TOPOLOGIES[topology],
        topology_name=topology,
        step=Step(**settings),
        weights=weights or Weights(name="random"),
        workload=Workload(name="short", requests=requests),
        calls=Calls(name="one", measured=1),
    )
