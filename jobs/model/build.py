"""Build the model under test of a cell, for the rank that calls."""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlock,
    TransformerBlockSubmodules,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from jobs.model import adapters
from jobs.model.attention import SelfAttentionOfAnyLength
from jobs.model.collect import collect_after_first_recompute
from jobs.model.engines import core_attention, routed_experts
from jobs.model.gdn import gdn_spec
from jobs.model.head import Head
from jobs.model.norm import RMSNorm
from jobs.model.release import release_after_backward
from jobs.spec import CellSpec
from jobs.workload import LocalBatch
from planner.errors import ConfigError
from planner.model import Model
from planner.step import Step

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
NORM_EPSILON = 1e-6


class ModelUnderTest(torch.nn.Module):
    """Embedding, Megatron's transformer block, final norm and head; returns the loss.

    Parameters
    ----------
    model, step
        Architecture, and how a step treats it (dtype, recompute, adapters, head chunk).
    dispatcher
        ``alltoall`` or ``hybridep``.
    """

    def __init__(self, model: Model, step: Step, dispatcher: str) -> None:
        super().__init__()
        dtype = DTYPES[step.dtype]
        self.recompute = step.recompute == "full"
        config = transformer_config(model, step, dispatcher)
        self.embedding = torch.nn.Embedding(model.vocab, model.hidden, dtype=dtype)
        self.decoder = TransformerBlock(
            config=config,
            spec=TransformerBlockSubmodules(
                layer_specs=_layer_specs(model, step), layer_norm=RMSNorm
            ),
        )
        # At construction the dispatcher would put its index tensors on a CUDA device for the fused
        # permutation; it reads this setting again in every call.
        config.moe_permute_fusion = True
        self.head = Head(model.hidden, model.vocab, step.head_chunk, dtype)
        turned = model.turned_channels
        channels = torch.arange(0, turned, 2, dtype=torch.float32) / turned
        self.inverse_frequencies = float(model.rotary_base) ** -channels
        if step.lora_rank:
            _freeze_all_but_adapters(self)
        if step.release_dispatcher_state:
            release_after_backward(self.decoder.layers)
        if step.compiled:
            from jobs.model.compiled import compile_layers

            compile_layers(self.decoder.layers)
        if step.collect_compile_garbage:
            collect_after_first_recompute(self.decoder.layers)

    def forward(self, batch: LocalBatch) -> Tensor:
        """Return this rank's part of the loss.

        The sum over ranks is the mean, over the call's targets, of their negative log-probability.
        """
        log_probs = self.log_probs(batch)
        return log_probs.sum() * (-1.0 / batch.global_targets)

    def log_probs(self, batch: LocalBatch) -> Tensor:
        """Return the log-probability of each local token's target, (T,) fp32; 0 without target."""
        x = self.embedding(batch.tokens.unsqueeze(1))
        if self.recompute and not x.requires_grad:
            x.requires_grad_()  # a reentrant checkpoint needs an input with a gradient
        angles = batch.positions[:, None].float() * self.inverse_frequencies
        x = self.decoder(
            hidden_states=x,
            attention_mask=None,
            rotary_pos_emb=torch.cat((angles, angles), -1)[:, None, None, :],
            packed_seq_params=batch.layout,
        )
        return self.head(x.squeeze(1), batch.targets)


def build_model(spec: CellSpec) -> ModelUnderTest:
    """Build this rank's shard of the cell's model, weights unset (`jobs.model.weights` sets them).

    Call `jobs.backend.cpu.start` first.

    Raises
    ------
    ConfigError
        For layers that are not implemented here, for a dispatcher that is not, and when ep does not
        divide the experts.
    """
    model, ep = spec.model, spec.topology.ep
    _require_heads(model, spec.topology.cp)
    if model.turned_channels % 2:
        raise ConfigError(f"Model.head_dim = {model.head_dim} must be even for rotary positions")
    if model.num_experts % ep:
        raise ConfigError(
            f"ep = {ep} does not divide the {model.num_experts} experts of {model.name}; "
            f"choose ep among the divisors of {model.num_experts}"
        )
    dispatcher = spec.step.dispatcher_at(spec.topology)
    if dispatcher not in ("alltoall", "hybridep"):
        raise ConfigError(
            f"dispatcher {dispatcher} cannot run on CPU ranks; choose alltoall, hybridep or auto"
        )
    return ModelUnderTest(model, spec.step, dispatcher)


def _require_heads(model: Model, cp: int) -> None:
    """Linear attention splits its heads over cp."""
    mixer = model.linear_attention
    if mixer is None or not model.num_linear_attention_layers:
        return
    if mixer.value_heads % mixer.key_heads:
        raise ConfigError(
            f"LinearAttention.value_heads = {mixer.value_heads} of {model.name} must be a multiple "
            f"of key_heads = {mixer.key_heads}"
        )
    if mixer.key_heads % cp:
        raise ConfigError(
            f"cp = {cp} does not divide the {mixer.key_heads} key heads of the Gated DeltaNet "
            f"layers of {model.name}, which split their heads over cp; choose cp among the "
            f"divisors of {mixer.key_heads}"
        )


def routed_rows(model: ModelUnderTest) -> list[int]:
    """Return the routed rows at this rank's experts, per layer, of the last forward."""
    return [layer.mlp.experts.last_rows for layer in model.decoder.layers]


def transformer_config(model: Model, step: Step, dispatcher: str) -> TransformerConfig:
    """Return Megatron's configuration of ``model``; the process groups give the parallel sizes."""
    from megatron.core import parallel_state

    recompute: dict[str, Any] = {}
    if step.recompute == "full":
        recompute = {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    mixer: dict[str, Any] = {}
    if model.linear_attention is not None:
        sizes = model.linear_attention
        mixer = {
            "linear_num_key_heads": sizes.key_heads,
            "linear_key_head_dim": sizes.key_dim,
            "linear_num_value_heads": sizes.value_heads,
            "linear_value_head_dim": sizes.value_dim,
            "linear_conv_kernel_dim": sizes.conv_width,
        }
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden,
        num_attention_heads=model.num_heads,
        num_query_groups=model.num_kv_heads,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.expert_hidden,
        num_moe_experts=model.num_experts,
        moe_router_topk=model.top_k,
        moe_ffn_hidden_size=model.expert_hidden,
        moe_shared_expert_intermediate_size=model.shared_expert_hidden or None,
        moe_shared_expert_gate=model.shared_expert_gate,
        moe_router_load_balancing_type="none",
        moe_aux_loss_coeff=0.0,
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="flex" if dispatcher == "hybridep" else "alltoall",
        moe_flex_dispatcher_backend="hybridep",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=NORM_EPSILON,
        qk_layernorm=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=step.engine == "own",  # else Transformer Engine builds on the CPU
        perform_initialization=False,
        bias_activation_fusion=True,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        cuda_graph_scope=[],
        params_dtype=DTYPES[step.dtype],
        bf16=step.dtype == "bf16",
        context_parallel_size=parallel_state.get_context_parallel_world_size(),
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_tensor_parallel_size=1,
        attention_output_gate=model.gated_attention,
        **recompute,
        **mixer,
    )


def _layer_specs(model: Model, step: Step) -> list[ModuleSpec]:
    """Every layer's specification; linear attention stands in the place of self-attention."""
    specs = [_layer_spec(model, step) for _ in range(model.num_layers)]
    for layer in model.linear_attention_layers:
        specs[layer].submodules.self_attention = gdn_spec(_dense_rank(step))
    return specs


def _layer_spec(model: Model, step: Step) -> ModuleSpec:
    """Megatron's local layer, with our norm, core attention and experts in their places."""
    spec = get_gpt_layer_local_spec(
        num_experts=model.num_experts, qk_layernorm=True, normalization="RMSNorm"
    )
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    layer.self_attention.module = SelfAttentionOfAnyLength
    attention = layer.self_attention.submodules
    attention.core_attention = core_attention(step.engine)
    attention.q_layernorm = attention.k_layernorm = RMSNorm
    layer.mlp.submodules.experts = ModuleSpec(
        module=routed_experts(step.engine), params={"lora_rank": step.lora_rank}
    )
    shared = layer.mlp.submodules.shared_experts.submodules
    rank = _dense_rank(step)
    attention.linear_qkv, attention.linear_proj = adapters.column(rank), adapters.row(rank)
    shared.linear_fc1, shared.linear_fc2 = adapters.column(rank), adapters.row(rank)
    return spec


def _dense_rank(step: Step) -> int:
    """Rank of the adapters of attention, Gated DeltaNet and shared experts; 0: they have none."""
    return step.lora_rank if step.adapters == "all" else 0


def _freeze_all_but_adapters(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.rpartition(".")[2] in ("lora_a", "lora_b"))
