"""transformers' own Trainer around a planned model: the weights after training are those of the plain model, bit for bit."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import transformers

from marks import few
from steps_compared import QUICK

BATCH, EPOCHS, LONGEST = 4, 2, 16
FULL = [LONGEST] * 16


@dataclass(frozen=True)
class Case:
    """One way to train.

    lengths : tokens of each row of the data. options : of TrainingArguments. labels : whether the Trainer gives the labels to
    the model. autocast : whether it runs the model in bfloat16. changes_model : whether it changes attributes of the model
    before the first step. unused : results that the Trainer does not read. plans : how many plans the run needs.
    """

    lengths: Sequence[int] = field(default_factory=lambda: FULL)
    options: dict[str, Any] = field(default_factory=dict)
    labels: bool = True
    autocast: bool = False
    changes_model: bool = False
    unused: Sequence[str] = ()
    plans: int = 1


CASES = {
    "float32": Case(),
    "bfloat16": Case(options={"bf16": True}, autocast=True),
    "accumulated": Case(options={"gradient_accumulation_steps": 2}),
    "last batch of two": Case([LONGEST] * 14, plans=2),
    "accumulated with a last batch of two": Case([LONGEST] * 14, {"gradient_accumulation_steps": 3}, plans=2),
    "padded to several lengths": Case(
        [LONGEST] * 4 + [9] * 4 + [12] * 8, {"train_sampling_strategy": "sequential"}, plans=4
    ),
    "without logits": Case([LONGEST] * 14, unused=["logits"], plans=2),
    "label smoothing": Case(options={"label_smoothing_factor": 0.1}, labels=False),
    "gradient checkpointing": Case(options={"gradient_checkpointing": True}, changes_model=True, plans=2),
}


def model() -> nn.Module:
    """A GPT-2 with dropout."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def rows(lengths: Sequence[int]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randint(1, 64, (n,), generator=g) for n in lengths]


def padded(tokens: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch, as long as its longest row."""
    ids = nn.utils.rnn.pad_sequence(list(tokens), batch_first=True)
    there = nn.utils.rnn.pad_sequence([torch.ones_like(t) for t in tokens], batch_first=True)
    return {"input_ids": ids, "attention_mask": there, "labels": ids.masked_fill(there == 0, -100)}


def trained(model: nn.Module, case: Case, folder: Path) -> nn.Module:
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, learning_rate=1e-2, use_cpu=True, seed=1,
        save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, **case.options,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=rows(case.lengths), data_collator=padded).train()
    return model


def sample(case: Case) -> dict[str, torch.Tensor]:
    """As the Trainer calls the model: with the number of the batch's labels, a float."""
    batch = {**padded(rows([LONGEST] * BATCH)), "num_items_in_batch": torch.tensor(60.0)}
    return {k: x for k, x in batch.items() if case.labels or k != "labels"}


@pytest.fixture(autouse=True)
def quiet_deprecations() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*deprecated and will be removed")
        yield


@pytest.mark.parametrize(
    "name",
    few(
        CASES,
        [
            "bfloat16",
            "without logits",
            "accumulated with a last batch of two",
            "label smoothing",
            "gradient checkpointing",
        ],
    ),
)
def test_weights_are_those_of_the_plain_run(tmp_path: Path, name: str) -> None:
    case, planned = CASES[name], model()
    twin = copy.deepcopy(planned)
    how = torch.autocast("cpu", torch.bfloat16) if case.autocast else contextlib.nullcontext()
    with how:
        rekindle.checkpoint(planned, sample(case), **QUICK, unused=case.unused, progress=False)
    forward: Any = planned.forward
    checked = next(forward.bounds)
    before = {k: p.clone() for k, p in planned.state_dict().items()}
    trained(planned, case, tmp_path)
    trained(twin, case, tmp_path)
    one, two = planned.state_dict(), twin.state_dict()
    assert [k for k in two if not torch.equal(one[k], two[k])] == []
    assert not all(torch.equal(before[k], one[k]) for k in one)  # it learned
    ran = [b.uses for b in forward.bounds]
    steps = EPOCHS * -(-len(case.lengths) // BATCH)
    assert sum(ran) == steps
    assert checked.uses > 0 or case.changes_model  # the plan that was checked is the one that runs,
    assert any(b.uses for b in forward.bounds if b.plan is checked.plan)  # also where the model is captured again
    assert len(ran) <= case.plans


def test_plans_for_what_the_sample_leaves_out(tmp_path: Path) -> None:
    """A sample without the Trainer's own argument, and in float32: another plan is made at the first step."""
    case, planned = CASES["bfloat16"], model()
    twin = copy.deepcopy(planned)
    batch = {k: x for k, x in sample(case).items() if k != "num_items_in_batch"}
    rekindle.checkpoint(planned, batch, **QUICK, progress=False)
    forward: Any = planned.forward
    trained(planned, case, tmp_path)
    trained(twin, case, tmp_path)
    assert all(map(torch.equal, planned.state_dict().values(), twin.state_dict().values()))
    assert sum(b.uses for b in forward.bounds) == EPOCHS * len(FULL) // BATCH
