"""Trainer of transformers: plan the model, then make the Trainer.

Run: python examples/hf_trainer.py
"""

import copy

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import rekindle

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=32, use_cache=False))
words = [torch.randint(100, (32,)) for _ in range(16)]
data = [{"input_ids": w, "labels": w} for w in words]
options = dict(per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, report_to=[], disable_tqdm=True)


def train(model):
    arguments = TrainingArguments("out/hf_trainer", save_strategy="no", logging_strategy="no", seed=1, **options)
    Trainer(model, arguments, train_dataset=data).train()
    return list(model.parameters())


plain = copy.deepcopy(model)
batch = torch.stack(words[:4])
sample = {"input_ids": batch, "labels": batch.clone(), "num_items_in_batch": torch.tensor(124.0)}  # as Trainer calls it
rekindle.checkpoint(model, sample, budget=0.7, effort="quick", optimizer="adamw")  # before Trainer(...)
print(model.forward.plan.sentence)
same, used = all(map(torch.equal, train(model), train(plain))), rekindle.status(model).calls
print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 4")
