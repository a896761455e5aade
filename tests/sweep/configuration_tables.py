"""Tiny models of timm and transformers by name, built from configuration: no downloads, no weights, nobody tuned for them.

`build(name)` gives (model in train mode, a function from a seed to a sample: a dict of keyword arguments or a tuple).
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Callable[[int], Any]]
CONFIGURATIONS: dict[str, Callable[[], Made]] = {}


VOCAB, LENGTH, BATCH, IMAGE = 64, 12, 2, 32


NOT_GIVEN = object()  # the configuration does not take this field though it has it


# what makes a configuration small, where it has a field of that name
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "n_embed": 32,
    "embedding_size": 32, "emb_dim": 32, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2, "num_encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "d_ff": 64,
    "intermediate_size": 64, "ffn_dim": 64, "ffn_hidden_size": 64, "n_inner": 64, "hidden_dim": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16,
    "mamba_d_state": 8, "state_size": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 8,
    "mamba_n_groups": 1, "mamba_num_heads": 8, "mamba_head_dim": 8, "mamba_chunk_size": 8, "chunk_size": 8, "lru_width": 32,
    "attention_hidden_size": 32, "attention_window_size": 8, "sliding_window": 8, "rotary_dim": 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "image_size": IMAGE, "patch_size": 8, "num_labels": 3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


def named(name: str, make: Callable[[], Made]) -> None:
    assert name not in CONFIGURATIONS, name
    CONFIGURATIONS[name] = make


# parameters: a configuration above it was not made small (its sizes stand in a nested configuration)
LARGEST = 20_000_000


def build(name: str) -> Made:
    """The same model and samples each time.

    Raises AssertionError for a model of more than 20 million parameters.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        model, sample = CONFIGURATIONS[name]()
    size = sum(p.numel() for p in model.parameters())
    assert size <= LARGEST, f"{name} has {size:,} parameters: make its configuration small"
    return model.train(), sample


def words(of: str) -> list[str]:
    return of.split()


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def ids(seed: int, length: int = LENGTH) -> Tensor:
    return torch.randint(4, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def labels(seed: int) -> Tensor:
    return torch.randint(0, 3, (BATCH,), generator=torch.Generator().manual_seed(seed))
