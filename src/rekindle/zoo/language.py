"""Language models at their published sizes, from transformers, each with its loss. No weights: they start at random.

Dropout is the library's default (GPT-2, BERT and T5: 0.1; Llama: none) unless it is given. Attention is
`scaled_dot_product_attention`, and nothing is kept for generation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .libraries import build, import_library

Made = tuple[nn.Module, dict[str, Tensor]]


def _model(kind: str, **config: Any) -> nn.Module:
    t = import_library("transformers")
    family, _, head = kind.partition(" ")
    # the default special tokens would lie outside of a small vocabulary
    made = getattr(t, f"{family}Config")(**config, use_cache=False, bos_token_id=0, eos_token_id=0)
    return build(lambda: getattr(t, family + head)(made))


def _gpt2(
    batch: int = 8, *, layers: int, d: int, heads: int, length: int = 1024, vocab: int = 50257,
    dropout: float | None = None,
) -> Made:  # fmt: skip
    drop = {} if dropout is None else dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    model: Any = _model(
        "GPT2 LMHeadModel", n_layer=layers, n_embd=d, n_head=heads, n_positions=length, vocab_size=vocab, **drop
    )
    model.loss_type = "ForCausalLM"  # the library takes that one anyway, but warns that it guessed
    ids = torch.randint(vocab, (batch, length))
    return model, {"input_ids": ids, "labels": ids}


def _llama(
    batch: int, *, layers: int, d: int, mlp: int, heads: int, kv_heads: int, length: int, vocab: int, theta: float,
    tied: bool, dropout: float = 0.0,
) -> Made:  # fmt: skip
    model = _model(
        "Llama ForCausalLM", num_hidden_layers=layers, hidden_size=d, intermediate_size=mlp, num_attention_heads=heads,
        num_key_value_heads=kv_heads, max_position_embeddings=length, vocab_size=vocab, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": theta}, attention_dropout=dropout,
    )  # fmt: skip
    ids = torch.randint(vocab, (batch, length))
    return model, {"input_ids": ids, "labels": ids}


def _llama_1b(
    batch: int = 4, *, layers: int = 16, d: int = 2048, mlp: int = 8192, heads: int = 32, kv_heads: int = 8,
    length: int = 2048, vocab: int = 128256, dropout: float = 0.0,
) -> Made:  # fmt: skip
    """Llama-3.2-1B."""
    return _llama(
        batch, layers=layers, d=d, mlp=mlp, heads=heads, kv_heads=kv_heads, length=length, vocab=vocab, theta=5e5,
        tied=True, dropout=dropout,
    )  # fmt: skip


def _llama_7b(
    batch: int = 1, *, layers: int = 32, d: int = 4096, mlp: int = 11008, heads: int = 32, kv_heads: int = 32,
    length: int = 4096, vocab: int = 32000, dropout: float = 0.0,
) -> Made:  # fmt: skip
    """Llama-2-7B."""
    return _llama(
        batch, layers=layers, d=d, mlp=mlp, heads=heads, kv_heads=kv_heads, length=length, vocab=vocab, theta=1e4,
        tied=False, dropout=dropout,
    )  # fmt: skip


def _bert(
    batch: int = 16, *, layers: int = 24, d: int = 1024, heads: int = 16, length: int = 512, vocab: int = 30522,
    dropout: float | None = None,
) -> Made:  # fmt: skip
    """Masked language modelling; every token is asked for, as the loss costs the same, and no token is padding."""
    drop = {} if dropout is None else dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    model = _model(
        "Bert ForMaskedLM", num_hidden_layers=layers, hidden_size=d, num_attention_heads=heads, intermediate_size=4 * d,
        max_position_embeddings=length, vocab_size=vocab, **drop,
    )  # fmt: skip
    ids = torch.randint(vocab, (batch, length))
    return model, {"input_ids": ids, "labels": ids}


def _t5(
    batch: int = 16, *, layers: int = 12, d: int = 768, heads: int = 12, length: int = 512, target_length: int = 128,
    vocab: int = 32128, dropout: float | None = None,
) -> Made:  # fmt: skip
    """`layers` in the encoder and as many in the decoder; `length` tokens go in, `target_length` come out."""
    drop = {} if dropout is None else {"dropout_rate": dropout}
    model = _model(
        "T5 ForConditionalGeneration", num_layers=layers, d_model=d, num_heads=heads, d_kv=d // heads, d_ff=4 * d,
        vocab_size=vocab, decoder_start_token_id=0, **drop,
    )  # fmt: skip
    ids = torch.randint(vocab, (batch, length))
    return model, {"input_ids": ids, "labels": torch.randint(vocab, (batch, target_length))}


MODELS: dict[str, Callable[..., Made]] = {
    "gpt2_small": partial(_gpt2, layers=12, d=768, heads=12),
    "gpt2_medium": partial(_gpt2, layers=24, d=1024, heads=16),
    "llama_1b": _llama_1b,
    "llama_7b": _llama_7b,
    "bert_large": _bert,
    "t5_base": _t5,
}
