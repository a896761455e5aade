"""A call that is bound by forward's parameter names and taken apart again means what the caller's call means."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from rekindle.torch.situation.module_call import bind
from rekindle.torch.situation.values import constants
from strategies import examples

TENSOR = torch.zeros(1)
values = st.sampled_from([0, 1, 2, None, "a", TENSOR])
Call = tuple[tuple[Any, ...], dict[str, Any]]


@st.composite
def forwards(draw: st.DrawFn) -> Callable[..., Any]:
    """A function of any mix of kinds of parameters that returns what each of them got."""
    defaults = st.sampled_from(["", "=0", "=1", "=None"])
    names, parts, ended = iter("abcd"), [], False  # a parameter without a default may not follow one with
    for marker in ("/", ""):
        some = draw(st.integers(0, 2))
        for _ in range(some):
            default = draw(defaults.filter(bool) if ended else defaults)
            ended = bool(default)
            parts.append(next(names) + default)
        parts += [marker] * bool(marker and some)
    keyword_only = [k + draw(defaults) for k in "kl"[: draw(st.integers(0, 2))]]
    parts += ["*rest"] if draw(st.booleans()) else ["*"] * bool(keyword_only)
    parts += keyword_only + ["**more"] * draw(st.booleans())
    space: dict[str, Any] = {}
    exec(f"def forward({', '.join(parts)}): return dict(locals())", space)
    return space["forward"]


@st.composite
def calls(draw: st.DrawFn, forward: Callable[..., Any]) -> Call:
    args = draw(st.lists(values, max_size=5))
    names = sorted({*signature(forward).parameters, "m"} - {"rest", "more"})
    return tuple(args), {k: draw(values) for k in draw(st.lists(st.sampled_from(names), max_size=3, unique=True))}


def meaning(forward: Callable[..., Any], call: Call) -> Any:
    """What each parameter gets, tensors by identity; None: the arguments do not fit."""
    args, kwargs = call
    try:
        got = forward(*args, **kwargs)
    except TypeError:
        return None
    return repr([(k, sorted(x.items()) if k == "more" else x) for k, x in got.items()])


@given(st.data())
@examples(4000)
def test_a_call_bound_and_taken_apart_is_the_callers(data: st.DataObject) -> None:
    forward = data.draw(forwards())
    call = data.draw(calls(forward))
    assert meaning(forward, bind(forward, *call).arguments) == meaning(forward, call)


@given(st.data())
@examples(400)
def test_calls_of_one_structure_mean_the_same(data: st.DataObject) -> None:
    """A plan serves all calls whose tensors stand in the same structure."""
    forward, seen = data.draw(forwards()), {}  # type: ignore[var-annotated]
    for call in data.draw(st.lists(calls(forward), min_size=2, max_size=12)):
        if (means := meaning(forward, call)) is not None:
            assert seen.setdefault(constants(bind(forward, *call).spec), means) == means
