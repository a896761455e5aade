"""Runs of Hugging Face's Trainer on small models from their configurations: batches, variants, and one run of each."""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

VOCAB, BATCH, WIDTH, LAYERS, HEADS = 512, 8, 128, 4, 4
LENGTHS, SHORTEST, STEP = 24, 24, 6  # of the padded batches: 24, 30, …, 162
FULL = SHORTEST + STEP * (LENGTHS - 1)
BATCHES = 48  # whole ones; one of half the size follows
IGNORED = -100  # label of a token that the loss leaves out
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Variant:
    """How a Trainer is set up.

    padded : batches are padded to their longest sample, 24 lengths in all; else all samples have one length.
    """

    padded: bool = False
    bf16: bool = True
    label_smoothing: float = 0.0
    gradient_checkpointing: bool = False


VARIANTS = {
    "lengths": Variant(padded=True),
    "one length": Variant(),
    "float32": Variant(bf16=False),
    "label smoothing": Variant(label_smoothing=0.1),
    "checkpointing": Variant(gradient_checkpointing=True),
}


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=LAYERS,
            n_head=HEADS,
            n_embd=WIDTH,
            vocab_size=VOCAB,
            n_positions=FULL,
            bos_token_id=0,
            eos_token_id=0,
        )  # fmt: skip
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            vocab_size=VOCAB,
            max_position_embeddings=FULL,
        )  # fmt: skip
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            vocab_size=VOCAB,
            max_position_embeddings=FULL,
        )  # fmt: skip
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama, "bert": bert}


def samples(variant: Variant) -> list[list[int]]:
    """Token ids of all samples, batch after batch; the last batch is half full."""
    chosen = random.Random(0)
    longest = [SHORTEST + STEP * (i % LENGTHS) for i in range(BATCHES + 1)]
    chosen.shuffle(longest)
    found = []
    for i, most in enumerate(longest):
        for k in range(BATCH if i < BATCHES else BATCH // 2):
            n = FULL if not variant.padded else most if k == 0 else chosen.randint(SHORTEST // 2, most - 1)
            found.append([chosen.randrange(1, VOCAB) for _ in range(n)])
    return found


def batch_of(ids: list[list[int]]) -> Batch:
    """Samples padded to the longest of them."""
    most = max(map(len, ids))
    tokens = torch.tensor([[*x, *[0] * (most - len(x))] for x in ids])
    mask = torch.tensor([[1] * len(x) + [0] * (most - len(x)) for x in ids])
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, IGNORED)}


def first_batch(variant: Variant) -> Batch:
    """The sample that a user would plan with: the batch of the longest samples."""
    every = samples(variant)
    whole = [every[i : i + BATCH] for i in range(0, BATCHES * BATCH, BATCH)]
    return batch_of(max(whole, key=lambda b: max(map(len, b))))


class Timed(Trainer):
    """A Trainer that notes the seconds of each forward with its backward, and the bits of losses and gradients."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.shapes: list[tuple[int, ...]] = []
        self.bits = hashlib.sha256()

    def training_step(self, model: nn.Module, inputs: Any, *more: Any, **kwargs: Any) -> torch.Tensor:
        self.shapes.append(tuple(inputs["input_ids"].shape))
        start, cpu = time.perf_counter(), time.process_time()
        loss: torch.Tensor = super().training_step(model, inputs, *more, **kwargs)
        self.seconds.append(time.perf_counter() - start)
        self.cpu_seconds.append(time.process_time() - cpu)
        for t in _results(model, loss):
            self.bits.update(t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return loss


def _results(model: nn.Module, loss: torch.Tensor) -> Iterator[torch.Tensor]:
    yield loss.reshape(1)
    yield from (p.grad for p in model.parameters() if p.grad is not None)
    yield torch.get_rng_state()


def run(model: nn.Module, variant: Variant) -> tuple[Timed, float, float]:
    """(the Trainer after one epoch in order of the samples, the seconds, the seconds of this process's CPU time)."""
    with tempfile.TemporaryDirectory() as folder:
        how = TrainingArguments(
            output_dir=folder, use_cpu=True, bf16=variant.bf16, gradient_accumulation_steps=2, num_train_epochs=1,
            per_device_train_batch_size=BATCH, label_smoothing_factor=variant.label_smoothing, report_to=[],
            gradient_checkpointing=variant.gradient_checkpointing, save_strategy="no", logging_strategy="no",
            disable_tqdm=True, train_sampling_strategy="sequential", remove_unused_columns=False,
        )  # fmt: skip
        trainer = Timed(model=model, args=how, train_dataset=samples(variant), data_collator=batch_of)
        start, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        return trainer, time.perf_counter() - start, time.process_time() - cpu
