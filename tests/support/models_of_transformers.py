"""Small models of the transformers library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from model_tables import HF, Made


def hf(build: Callable[[], Made]) -> Callable[[], Made]:
    HF[build.__name__] = build
    return build


def _ids(batch: int = 2, length: int = 24, vocab: int = 60) -> Tensor:
    return torch.randint(3, vocab, (batch, length))


def _transformers() -> Any:
    """The package, imported when a test first asks for it."""
    import transformers

    return transformers


@hf
def gpt2() -> Made:
    t = _transformers()
    config = t.GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    ids = _ids()
    return t.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


@hf
def llama() -> Made:
    t = _transformers()
    config = t.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    ids = _ids()
    return t.LlamaForCausalLM(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@hf
def bert() -> Made:
    t = _transformers()
    config = t.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    ids = _ids()
    mask = torch.ones_like(ids)
    mask[1, 18:] = 0
    return t.BertForMaskedLM(config), {"input_ids": ids, "attention_mask": mask, "labels": ids}


@hf
def t5() -> Made:
    t = _transformers()
    config = t.T5Config(
        vocab_size=60, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0,
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config), {"input_ids": _ids(), "labels": _ids(length=12)}


@hf
def vit() -> Made:
    t = _transformers()
    config = t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        hidden_dropout_prob=0.1, num_labels=3,
    )  # fmt: skip
    return t.ViTForImageClassification(config), {
        "pixel_values": torch.rand(4, 3, 32, 32),
        "labels": torch.tensor([0, 1, 2, 0]),
    }


@hf
def mixtral() -> Made:
    t = _transformers()
    config = t.MixtralConfig(
        vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2,
        output_router_logits=True,
    )  # fmt: skip
    ids = _ids()
    return t.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids}


def _small(kind: str, **more: Any) -> Any:
    t = _transformers()
    given = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    return getattr(t, kind)(**given, max_position_embeddings=40, **more)


@hf
def longformer() -> Made:
    """Asks a float mask that it makes of the integer one whether any position attends globally."""
    ids = _ids()
    model = _transformers().LongformerForMaskedLM(_small("LongformerConfig", attention_window=8))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@hf
def led() -> Made:
    t = _transformers()
    config = t.LEDConfig(
        vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, attention_window=8,
        max_encoder_position_embeddings=32, max_decoder_position_embeddings=32, decoder_start_token_id=1,
    )  # fmt: skip
    ids = _ids()
    return t.LEDForConditionalGeneration(config), {"input_ids": ids, "labels": ids[:, :12].contiguous()}


@hf
def electra_pretraining() -> Made:
    """Selects by its mask the positions that count."""
    ids = _ids()
    config = _small("ElectraConfig", embedding_size=32)
    labels = {"attention_mask": torch.ones_like(ids), "labels": ids % 2}
    return _transformers().ElectraForPreTraining(config), {"input_ids": ids} | labels


@hf
def xmod() -> Made:
    """Selects by a mask that it makes itself the samples of each language, and writes them back."""
    ids = _ids()
    config = _small("XmodConfig", languages=["en_XX", "de_DE"], default_language="en_XX", pad_token_id=1)
    return _transformers().XmodForMaskedLM(config), {"input_ids": ids, "labels": ids}
