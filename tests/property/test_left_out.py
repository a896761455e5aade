"""Which places of a result the names of unused results leave out."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rekindle.torch.capture.left_out import as_if_left_out, without_unused
from rekindle.torch.tensors import tree

structures = st.recursive(
    st.sampled_from(["tensor", "none", "number"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def built(structure: Any, made: list[Tensor]) -> Any:
    if isinstance(structure, list):
        return [built(x, made) for x in structure]
    if isinstance(structure, dict):
        return {k: built(x, made) for k, x in structure.items()}
    if structure != "tensor":
        return None if structure == "none" else 3
    made.append(torch.tensor(float(len(made))))
    return made[-1]


def places(x: Any, at: str = "") -> dict[str, Any]:
    """Every place below, by its name."""
    inside = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    found: dict[str, Any] = {}
    for k, y in inside:
        name = f"{at}.{k}" if at else str(k)
        found |= {name: y} | places(y, name)
    return found


@given(structure=structures, data=st.data())
def test_exactly_the_named_places_become_none(structure: Any, data: st.DataObject) -> None:
    made: list[Tensor] = []
    whole = {"first": torch.tensor(-1.0), "rest": built(structure, made)}
    names = data.draw(st.lists(st.sampled_from(sorted(places(whole["rest"])) or ["none"]), max_size=3, unique=True))
    names = [f"rest.{n}" for n in names]
    tensors, spec = tree.flatten(whole)
    kept, left, unknown = without_unused(tensors, spec, names, "all")
    after = tree.unflatten(kept, left)
    assert as_if_left_out(whole, names) == after
    known = places(whole)
    assert set(unknown) == set(names) - set(known)
    gone = {
        n for n in names if n in known and any(isinstance(x, Tensor) for x in [known[n], *places(known[n]).values()])
    }
    now = places(after)
    for name, x in known.items():
        if name in gone:
            within = any(name.startswith(f"{other}.") for other in gone)  # a place within another one goes with it
            assert name not in now if within else now[name] is None
        elif not any(name.startswith(f"{g}.") for g in gone):
            assert now[name] is x or isinstance(x, dict | list), name
        else:
            assert name not in now
    assert {id(t) for t in kept} == {id(x) for n, x in now.items() if isinstance(x, Tensor)}
