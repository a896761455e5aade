"""PEFT: add the adapters, then plan the model around them.

Run: python examples/peft_lora.py
"""

import copy

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import rekindle

torch.manual_seed(0)
size = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
base = LlamaForCausalLM(LlamaConfig(**size, vocab_size=100, use_cache=False))
model = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
words = torch.randint(100, (4, 4, 32))


def train(model):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for batch in words:
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


plain = copy.deepcopy(model)
batch = words[0]
rekindle.checkpoint(model, {"input_ids": batch, "labels": batch}, budget=0.7, effort="quick")  # after get_peft_model
print(model.forward.plan.sentence)
same, used = all(map(torch.equal, train(model), train(plain))), rekindle.status(model).calls
print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 4")
