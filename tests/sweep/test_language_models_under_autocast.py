"""Language models as people fine-tune them: in bfloat16 autocast, whole, or with encoder and decoder planned apart."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from rekindle.torch.measure.as_before import same

transformers = pytest.importorskip("transformers")
WORDS, LEAST = 96, {"minimize": "memory", "effort": "quick", "progress": False}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
SEQ2SEQ = {"vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
           "decoder_start_token_id": 1} | MARKS  # fmt: skip
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0} | MARKS  # fmt: skip
CAUSAL = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 64} | MARKS  # fmt: skip
BLOOM = {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4} | MARKS
WHISPER = SEQ2SEQ | {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32,
                     "encoder_layerdrop": 0.3, "decoder_layerdrop": 0.3, "suppress_tokens": [],
                     "begin_suppress_tokens": []}  # fmt: skip
HYBRID = CAUSAL | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 4,
                   "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}  # fmt: skip
EXPERTS = CAUSAL | {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA = CAUSAL | {"intermediate_size": [64, 64], "head_dim": 8, "vocab_size_per_layer_input": WORDS, "laurel_rank": 4,
                  "hidden_size_per_layer_input": 8, "altup_num_inputs": 2, "num_kv_shared_layers": 0,
                  "layer_types": ["sliding_attention", "full_attention"],
                  "activation_sparsity_pattern": [0.5, 0.0]}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", SEQ2SEQ),
    "marian": ("MarianConfig", "MarianMTModel", SEQ2SEQ),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),
    "bloom": ("BloomConfig", "BloomForCausalLM", BLOOM),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", EXPERTS),
    "gemma3n": ("Gemma3nTextConfig", "Gemma3nForCausalLM", GEMMA),
    "olmo hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", HYBRID),
}


def bf16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def make(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config, kind, options = MODELS[name]
    model = getattr(transformers, kind)(getattr(transformers, config)(**options)).train()
    ids = torch.randint(4, WORDS, (2, 12))
    if name == "whisper":
        return model, {"input_features": torch.randn(2, 16, 40), "labels": ids}
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def whole(model: nn.Module, sample: dict[str, torch.Tensor]) -> None:
    rekindle.checkpoint(model, sample, **LEAST)


def apart(*names: str) -> Callable[[nn.Module, dict[str, torch.Tensor]], None]:
    def plan(model: Any, sample: dict[str, torch.Tensor]) -> None:
        inner = getattr(model, "model", model)
        for module in [getattr(inner, name) for name in names]:
            given: dict[str, Any] = {}

            def note(m: nn.Module, args: Any, kwargs: Any, into: dict[str, Any] = given) -> None:
                bound = inspect.signature(m.forward).bind(*args, **kwargs).arguments
                into.update({k: x for k, x in bound.items() if k != "kwargs"} | bound.get("kwargs", {}))

            hook = module.register_forward_pre_hook(note, with_kwargs=True)
            with torch.random.fork_rng():
                model(**sample)
            hook.remove()
            rekindle.checkpoint(module, given, **LEAST)

    return plan


def steps(model: Any, sample: dict[str, torch.Tensor]) -> list[Any]:
    torch.manual_seed(1)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        with bf16():
            loss = model(**sample).loss
        loss.backward()
        found += [
            loss.detach(),
            *(p.grad for p in model.parameters()),
            *map(torch.clone, model.buffers()),
            torch.get_rng_state(),
        ]
        optimizer.step()
    return found


WAYS = {
    "whole": whole,
    "encoder first": apart("encoder", "decoder"),
    "decoder first": apart("decoder", "encoder"),
}


ALONE = ("bloom", "mixtral", "gemma3n", "olmo hybrid")  # decoders without an encoder
CASES = [
    pytest.param(name, plan, id=f"{name}-{way}")
    for name in MODELS for way, plan in WAYS.items() if way == "whole" or name not in ALONE
]  # fmt: skip


@sweep
@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_bit(name: str, way: Callable[[nn.Module, dict[str, torch.Tensor]], None]) -> None:
    model, sample = make(name)
    plain = copy.deepcopy(model)
    with bf16():
        way(model, sample)
    assert all(same(a, b) for a, b in zip(steps(model, sample), steps(plain, sample), strict=True))
