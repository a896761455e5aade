"""A loop as in TRL: the policy is planned, a frozen reference runs beside it, each batch is used for two steps.

Run: python examples/dpo_loop.py
"""

import copy

import torch
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import GPT2Config, GPT2LMHeadModel

import rekindle

torch.manual_seed(0)
policy = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=32, use_cache=False))
reference = copy.deepcopy(policy).eval().requires_grad_(False)
pairs = torch.randint(100, (4, 8, 32))  # rows 0-3 of each batch are chosen, rows 4-7 rejected


def log_probability(model, words):
    return -cross_entropy(model(input_ids=words).logits[:, :-1].mT, words[:, 1:], reduction="none").sum(-1)


def train(policy):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    for words in pairs:
        before = torch.no_grad()(log_probability)(reference, words)
        for _ in range(2):
            gain = log_probability(policy, words) - before
            (-logsigmoid(0.1 * (gain[:4] - gain[4:])).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(policy.parameters())


plain = copy.deepcopy(policy)
rekindle.checkpoint(policy, {"input_ids": pairs[0]}, budget=0.7, effort="quick")  # the policy alone, after the copy
same, used = all(map(torch.equal, train(policy), train(plain))), rekindle.status(policy).calls
print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 8")
