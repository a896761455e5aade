"""Models with a compiled plan in transformers' own Trainer and in Lightning: the plain run's weights, to rounding."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep

pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import transformers

import lightning_models as lit
from test_trainer import LONGEST, Case, padded, rows, trained

pytestmark = sweep
CASES = {
    "float32": Case(),
    "accumulated": Case(options={"gradient_accumulation_steps": 2}),
    "padded to two lengths": Case([LONGEST] * 8 + [9] * 8, {"train_sampling_strategy": "sequential"}),
}


def close(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(bool((a - b).abs().max() <= 1e-3 * b.abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", CASES)
def test_trainer(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, hidden_size=32, intermediate_size=64, vocab_size=64,
        max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    plain = transformers.LlamaForCausalLM(config)
    planned = copy.deepcopy(plain)
    sample = padded(rows(CASES[name].lengths)[:4])
    rekindle.checkpoint(planned, sample, 0.6, or_least=True, compile=True, effort="quick", progress=False)
    before = copy.deepcopy(planned.state_dict())
    trained(planned, CASES[name], tmp_path)
    trained(plain, CASES[name], tmp_path)
    assert planned.forward.plan.stages  # type: ignore[union-attr]
    assert close(planned, plain)
    assert not any(torch.equal(p, before[k]) for k, p in planned.named_parameters())


class BySgd(lit.Lit):
    """AdamW makes steps of rounding: a bias before a batch norm has no other gradient."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning(tmp_path: Path) -> None:
    plain, planned = BySgd(), BySgd()
    planned.load_state_dict(plain.state_dict())
    for m in (*plain.modules(), *planned.modules()):
        if isinstance(m, nn.Dropout):
            m.p = 0.0  # compiled code draws other masks
    plan = lit.PlanCallback(0.6, or_least=True, compile=True, effort="quick", progress=False)
    for model, callbacks in ((plain, []), (planned, [plan])):
        lit.fitted(model, lit.trainer(tmp_path, *callbacks, enable_checkpointing=False))
    assert plan.plan is not None
    assert close(planned, plain)
