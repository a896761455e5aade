"""Language models at their published sizes, from transformers, each with its loss. No weights: they start at random.

Dropout is the library's default (GPT-2, BERT and T5: 0.1; Llama: none) unless it is given. Attention is
`scaled_dot_product_attention`, and nothing is kept for generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rekindle.zoo.vision import import_library

from .building import Sized, build

Made = tuple[nn.Module, dict[str, Tensor]]


def _model(kind: str, **config: Any) -> nn.Module:
    """kind : family and head of a class of transformers, e.g. "Bert ForMaskedLM"; config : fields of the family's Config."""
    t = import_library("transformers")
    family, _, head = kind.partition(" ")
    # the default special tokens would lie outside a small vocabulary
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
    model.loss_type = "ForCausalLM"  # the library would take it too, with a warning that it guessed
    ids = torch.randint(vocab, (batch, length))
    return model, {"input_ids": ids, "labels": ids}


@dataclass(frozen=True)
class LlamaSize:
    """Options of a Llama.

    layers, d : blocks and channels.
    mlp : channels inside an MLP.
    heads, kv_heads : attention heads of the queries, and of the keys and values.
    length, vocab : tokens per sequence, and different tokens.
    dropout : probability, in attention.
    """

    layers: int
    d: int
    mlp: int
    heads: int
    kv_heads: int
    length: int
    vocab: int
    dropout: float = 0.0


def _llama(batch: int, size: LlamaSize, theta: float, tied: bool) -> Made:
    """theta : base of the rotary embedding's frequencies. tied : the head shares the embedding's weight."""
    model = _model(
        "Llama ForCausalLM", num_hidden_layers=size.layers, hidden_size=size.d, intermediate_size=size.mlp,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, max_position_embeddings=size.length,
        vocab_size=size.vocab, tie_word_embeddings=tied, attention_dropout=size.dropout,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )  # fmt: skip
    ids = torch.randint(size.vocab, (batch, size.length))
    return model, {"input_ids": ids, "labels": ids}


LLAMA_1B = LlamaSize(layers=16, d=2048, mlp=8192, heads=32, kv_heads=8, length=2048, vocab=128256)  # Llama-3.2-1B
LLAMA_7B = LlamaSize(layers=32, d=4096, mlp=11008, heads=32, kv_heads=32, length=4096, vocab=32000)  # Llama-2-7B


def _bert(
    batch: int = 16, *, layers: int = 24, d: int = 1024, heads: int = 16, length: int = 512, vocab: int = 30522,
    dropout: float | None = None,
) -> Made:  # fmt: skip
    """Masked language modelling. Every token is a target, which costs the same, and no token is padding."""
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
    "llama_1b": Sized(partial(_llama, theta=5e5, tied=True), LLAMA_1B, batch=4),
    "llama_7b": Sized(partial(_llama, theta=1e4, tied=False), LLAMA_7B, batch=1),
    "bert_large": _bert,
    "t5_base": _t5,
}
