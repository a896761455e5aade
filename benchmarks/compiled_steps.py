"""Compiled steps in less memory: eager, torch.compile, with checkpoints, with a budget, and Rekindle's compiled plans.

python benchmarks/compiled_steps.py gpt2 llama vit resnet unet t5 --small      # on the CPU, one thread

Every method is a copy of one model with its own compiled code. Peaks are the allocator's, of a step whose results the loop
holds, without what is held before it. The steps of all methods take turns; the fastest of --rounds counts. Rekindle is asked
for the peak of each other compiled method, and for the least; for the peak of checkpoints also with copies to the host; for
language models also for the least with unused logits. With --small also for the least with copies, and half-way between
compile's peak and its checkpoints', with all ways and with min-cut and inputs alone. One JSON row per method goes to
results/DATE-compiled-steps.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import path_of, provenance
from compiled_models import MODELS
from torch import nn
from torch._inductor.compile_fx import compile_fx
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import rekindle
from rekindle.torch.compiled.cuts import find_blocks
from rekindle.torch.compiled.saving import PRODUCTS
from rekindle.torch.measure.memory import allocator_peak

Row = dict[str, Any]


class Method:
    """A copy of a model that is trained in one way. within : surrounds each call that may compile."""

    def __init__(self, name: str, model: nn.Module, within: Callable[[], Any] = contextlib.nullcontext):
        self.name, self.model, self._within = name, copy.deepcopy(model), within
        self.row: Row = {}
        self.call: Callable[..., Any] = self.model
        self.seconds = float("inf")

    def step(self, given: Row, autocast: bool) -> Any:
        """One step; gives its result, which the caller holds."""
        device = next(self.model.parameters()).device.type
        for p in self.model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        with self._within():
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                result = self.call(**given)
            (result if isinstance(result, torch.Tensor) else result.loss).backward()
        return result

    def peak(self, given: Row, autocast: bool) -> int:
        """Bytes above what is held before a step."""
        held: list[Any] = []
        device = next(self.model.parameters()).device
        return allocator_peak(lambda: held.append(self.step(given, autocast)), device).peak_bytes


def checkpointed(method: Method, **how: Any) -> Method:
    """Each block runs under torch.utils.checkpoint. how : more of its arguments."""
    for block in find_blocks(method.model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **how)  # type: ignore[method-assign]
    return method


def selective(method: Method) -> Method:
    """Each block saves the results of its products and its attention alone (selective activation checkpointing)."""
    products = [getattr(packet, overload) for packet in PRODUCTS for overload in packet.overloads()]
    contexts = functools.partial(create_selective_checkpoint_contexts, products)
    return checkpointed(method, context_fn=contexts)


def compiled(method: Method) -> Method:
    def backend(graph: Any, inputs: Any) -> Any:  # of this method alone: Dynamo shares code between equal backends
        return compile_fx(graph, inputs)

    method.call = torch.compile(method.model, backend=backend, dynamic=False)
    return method


def with_budget(share: float) -> Callable[[], Any]:
    from torch._functorch import config

    return lambda: config.patch(activation_memory_budget=share)


def planned(name: str, model: nn.Module, given: Row, autocast: bool, **goal: Any) -> Method:
    """A plan of Rekindle for one goal."""
    method, begin = Method(name, model), time.perf_counter()
    device = next(model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        rekindle.checkpoint(method.model, given, progress=False, **goal)
    plan: Any = method.model.forward.plan
    predicted = plan.activation_peak_bytes
    method.row = {"plan_seconds": time.perf_counter() - begin, "predicted": predicted, "verdict": plan.sentence}
    return method


def measure(name: str, device: str, small: bool, rounds: int) -> Iterator[Row]:
    """The rows of one model."""
    torch.manual_seed(0)
    torch._dynamo.reset()  # models of one library share code, and so the limit of its compilations
    model, given = MODELS[name](device, small)
    autocast = not small and name not in ("llama", "resnet")
    others = [
        Method("eager", model),
        checkpointed(Method("eager, checkpoint per block", model)),
        compiled(Method("compile", model)),
        compiled(checkpointed(Method("compile, checkpoint per block", model))),
        compiled(selective(Method("compile, products saved", model))),
        compiled(Method("compile, budget 0.5", model, with_budget(0.5))),
    ]
    methods = [m for m in others if _tried(m, given, autocast)]
    held = {m.name: m.row["peak"] for m in methods}
    methods.append(planned("ours, eager, half", model, given, autocast, budget=0.5, or_least=True))
    least = planned("ours, least", model, given, autocast, budget=0.01, or_least=True, compile=True)
    methods.append(least)
    resident = least.model.forward.plan.resident_bytes  # type: ignore[union-attr]
    copies = {"or_least": True, "compile": True, "offload": True}
    if small:  # a device that is lent has time for one plan with copies
        methods.append(planned("ours, least, copied", model, given, autocast, budget=0.01, **copies))
    for like in held:
        if like.startswith("compile"):
            goal = {"budget": resident + held[like], "or_least": True, "compile": True}
            methods.append(planned(f"ours, at the peak of {like}", model, given, autocast, **goal))
        if like == "compile, checkpoint per block":
            goal = {"budget": resident + held[like], **copies}
            methods.append(planned(f"ours, at the peak of {like}, copied", model, given, autocast, **goal))
    if "labels" in given:
        goal = {"budget": 0.01, "or_least": True, "compile": True, "unused": ["logits"]}
        methods.append(planned("ours, least, logits unused", model, given, autocast, **goal))
    whole, blocks = held.get("compile"), held.get("compile, checkpoint per block")
    if small and whole and blocks:  # on a device that is lent, there is no time for this comparison
        for name_of_it, effort in (("ours, in the middle", "normal"), ("ours, in the middle, two ways", "quick")):
            goal = {"budget": resident + (whole + blocks) // 2, "or_least": True, "compile": True, "effort": effort}
            methods.append(planned(name_of_it, model, given, autocast, **goal))
    for m in methods:
        m.step(given, autocast)
        m.row["peak"] = m.peak(given, autocast)
    for _ in range(rounds):
        for m in methods:
            _wait(device)
            begin = time.perf_counter()
            m.step(given, autocast)
            _wait(device)
            m.seconds = min(m.seconds, time.perf_counter() - begin)
    eager = methods[0]
    for m in methods:
        m.row |= {"model": name, "method": m.name, "seconds": m.seconds, "of_eager": m.seconds / eager.seconds}
        yield m.row | {"peak_of_eager": m.row["peak"] / eager.row["peak"]}


def _tried(m: Method, given: Row, autocast: bool) -> bool:
    """Whether the first step of a method succeeds; its memory and time are noted."""
    begin = time.perf_counter()
    try:
        m.step(given, autocast)
    except Exception as e:  # torch.compile's own errors have no common class
        print(f"{m.name}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
        return False
    m.row["first_step_seconds"] = time.perf_counter() - begin
    m.row["peak"] = m.peak(given, autocast)
    return True


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", default=[*MODELS], choices=[*MODELS])
    p.add_argument("--device", default="cpu")
    p.add_argument("--small", action="store_true")
    p.add_argument("--rounds", type=int, default=15)
    given = p.parse_args()
    facts = {"benchmark": "compiled_steps", **provenance()}
    for name in given.models:
        rows = list(measure(name, given.device, given.small, given.rounds))
        with path_of("compiled-steps.jsonl").open("a", encoding="utf-8") as f:
            f.writelines(json.dumps({**facts, **row}) + "\n" for row in rows)
        for row in rows:
            off = (
                ""
                if "predicted" not in row
                else f"  predicted {row['predicted'] / 2**20:8.2f} MiB, {row['plan_seconds']:.0f} s"
            )
            print(
                f"{name:8} {row['method']:46} {row['peak'] / 2**20:8.2f} MiB ({row['peak_of_eager']:.2f}) "
                f"{1e3 * row['seconds']:8.1f} ms ({row['of_eager']:.2f}){off}",
                flush=True,
            )


if __name__ == "__main__":
    main()
