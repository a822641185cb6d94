"""Reserve HybridEP buffers before a call, where the table says that the trainer does."""

from jobs.spec import CellSpec
from planner.admission import Decision
from planner.hybridep import BufferPolicy

STREAMING_MULTIPROCESSORS = 24
"""Megatron's own default for either direction (``hybrid_ep_dispatch``)."""


def reserve_ahead(
    spec: CellSpec, policy: BufferPolicy, decision: Decision, rank: int, held_tokens: int
) -> None:
    """Make the buffers that the plan has priced, where its table reserves ahead of a call.

    Megatron's first dispatch would size them by the call. The new ones are made before the old
    ones go, as by Megatron's initialiser.

    Parameters
    ----------
    policy
        Of the table that priced the decision.
    held_tokens
        Padded tokens per rank that the held buffers take.
    """
    tokens = max((child.prices[rank].buffer_tokens for child in decision.children), default=0)
    if policy.reserve == "call" or tokens <= held_tokens:
        return
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import fused_a2a

    fused_a2a.init_hybrid_ep_buffer(
        group=parallel_state.get_expert_tensor_and_model_parallel_group(),
        hidden_dim=spec.model.hidden,
        seq_len=tokens,
        num_local_experts=spec.model.num_experts // spec.topology.ep,
        num_sms_dispatch_api=STREAMING_MULTIPROCESSORS,
        num_sms_combine_api=STREAMING_MULTIPROCESSORS,
        fp8_dispatch=False,
    )
