"""Every argument of the public functions against values that make no sense: an error of ours in a few words, or an answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle import Plan, RekindleError, Trace
from rekindle.printed import MESSAGE_MOST_LETTERS


class NoRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")


def closed_file() -> Any:
    with Path(__file__).open(encoding="utf-8") as f:
        return f


ODD: dict[str, Any] = {
    "huge": 10**400, "below": -(10**400), "nan": float("nan"), "letters": "x" * 100_000, "words": "x " * 50_000,
    "names": ["y" * 1000] * 1000, "bytes": b"x", "object": object(), "no repr": NoRepr(), "class": dict, "file": closed_file(),
    "tensor": torch.tensor(1.0), "whole": torch.tensor(3), "flag": torch.tensor(True), "none of them": torch.tensor([]),
    "array": np.array(1.0), "arrays": np.arange(3), "complex": 1j, "surrogate": "\ud800", "null": "a\0b", "empty": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, torch.Tensor, Trace, Plan]:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4)
    trace = rekindle.trace(net, x, target="h100", progress=False)
    return net, x, trace, rekindle.plan(trace, max_overhead=0.5, solver="chen-sqrt", cache=False, progress=False)


# function -> its arguments but the odd one; those that are not tried: functions that the user gives may raise what they like
VERBS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Any]], tuple[str, ...]]] = {
    "plan": (rekindle.plan, lambda net, x, trace, plan: {"what": trace, "solver": "none", "progress": False}, ()),
    "frontier": (
        rekindle.frontier,
        lambda net, x, trace, plan: {"what": trace, "solver": "none", "progress": False},
        (),
    ),
    "trace": (
        rekindle.trace,
        lambda net, x, trace, plan: {"model": net, "sample": x, "target": "h100", "progress": False},
        (),
    ),
    "checkpoint": (
        rekindle.checkpoint,
        lambda net, x, trace, plan: {"model": net, "sample": x, "solver": "none", "check": False, "progress": False},
        ("sample",),
    ),
    "apply": (rekindle.apply, lambda net, x, trace, plan: {"model": net, "plan": plan}, ()),
    "restore": (rekindle.restore, lambda net, x, trace, plan: {}, ()),
    "verify": (rekindle.verify, lambda net, x, trace, plan: {"model": net, "sample": x, "plan": plan}, ("loss",)),
    "estimate": (
        rekindle.estimate,
        lambda net, x, trace, plan: {"model": net, "sample": x, "progress": False},
        ("loss",),
    ),
    "load": (rekindle.load, lambda net, x, trace, plan: {}, ()),
    "save": (Plan.save, lambda net, x, trace, plan: {"self": plan}, ()),
    "simulate": (rekindle.simulate, lambda net, x, trace, plan: {"graph": trace.graph, "schedule": plan.schedule}, ()),
}
CASES = [
    (verb, argument, odd)
    for verb, (function, _, left_out) in VERBS.items()
    for argument in inspect.signature(function).parameters
    if argument not in ("self", "graph", "schedule", *left_out)
    for odd in ODD
    if (argument, odd) != ("progress", "class")
]


@pytest.mark.parametrize("verb", every(4, VERBS))
def test_odd_arguments_are_refused_in_a_few_words(
    verb: str, made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # some are names of files
    function, arguments, _ = VERBS[verb]
    refused = []
    for of, argument, odd in CASES:
        if of != verb:
            continue
        given = {**arguments(*made), argument: ODD[odd]}
        if verb in ("plan", "checkpoint") and not given.keys() & {"budget", "max_overhead", "minimize"}:
            given["max_overhead"] = 0.5
        try:
            function(**given)
        except RekindleError as e:
            refused.append(str(e))
        except Exception as e:
            raise AssertionError(f"{verb}({argument}={odd})") from e
        finally:
            rekindle.restore(made[0])
    assert len(refused) > 5
    assert max(map(len, refused)) <= MESSAGE_MOST_LETTERS + 3
    assert not [r for r in refused if "xxxxxxxxx" * 30 in r]
