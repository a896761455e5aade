"""Boolean indexing is captured where it is known how many elements the mask selects."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every, few
from steps_compared import assert_same_steps, planned_and_eager, plans

WIDTH, LENGTH = 8, 6


def written_back(h: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[mask] = torch.tanh(h[mask])  # backward selects twice more
    return out


def written_in_place(h: Tensor, mask: Tensor) -> Tensor:
    h = h.clone()
    h[mask] *= 2.0
    return h


SELECTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda h, mask: h[mask],
    "index by two": lambda h, mask: h[mask, torch.tensor(1)],
    "index behind": lambda h, mask: h.transpose(0, 2)[:, mask.T],
    "masked_select": lambda h, mask: h.masked_select(mask[..., None]),
    "nonzero": lambda h, mask: h[mask.nonzero(as_tuple=True)],
    "nonzero of floats": lambda h, mask: h.flatten(0, 1).index_select(0, mask.flatten().float().nonzero()[:, 0]),
    "a number": lambda h, mask: h * mask.nonzero().shape[0],
    "written back": written_back,
    "written in place": written_in_place,
    "filled": lambda h, mask: h.index_put((mask,), torch.zeros(WIDTH)),
}


class Selects(nn.Module):
    def __init__(self, how: str, made: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.select, self.made = SELECTIONS[how], made

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids > 0 if self.made is None else self.made(ids)
        return (
            self.select(self.head(nn.functional.dropout(self.embed(ids), 0.2, self.training)), mask).square().sum()
            / 1000
        )


def full(seed: int) -> Tensor:
    return torch.randint(1, 9, (3, LENGTH), generator=torch.Generator().manual_seed(seed))


def every_other(ids: Tensor) -> Tensor:
    """A mask of known count, whatever the ids are."""
    return (torch.arange(ids.numel()) % 2 == 0).view(ids.shape)


MASKS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "all": None, "every other": every_other, "none": lambda ids: ids < 0
}  # fmt: skip
QUICK = [("index", "all"), ("index by two", "every other"), ("masked_select", "every other"), ("nonzero", "none"),
         ("written back", "all"), ("written back", "none"), ("a number", "all")]  # fmt: skip


@pytest.mark.parametrize(("how", "mask"), few([(how, mask) for how in SELECTIONS for mask in MASKS], QUICK))
def test_a_mask_of_known_count(how: str, mask: str) -> None:
    torch.manual_seed(0)
    model = Selects(how, MASKS[mask])
    plan = rekindle.plan(rekindle.trace(model, full(0)), minimize="memory", solver="storages", time_limit=0.2)
    assert rekindle.verify(model, full(1), plan).ok


@pytest.mark.parametrize("how", every(3, ["index", "masked_select", "written back"]))
def test_steps_are_eagers_and_other_counts_run_plain_with_a_warning(how: str) -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Selects(how), full(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_steps(planned, eager, full)
    assert plans(planned) == 1
    padded = full(0)
    padded[1, 3:] = 0
    with pytest.warns(rekindle.RekindleWarning, match="depends on tensor values"):
        assert_same_steps(planned, eager, lambda i: padded)
    assert_same_steps(planned, eager, full)


def test_a_count_that_differs_from_call_to_call_is_refused() -> None:
    padded = full(0)
    padded[1, 3:] = 0
    with pytest.raises(rekindle.TraceError, match="depends on tensor values"):
        rekindle.trace(Selects("index"), padded)
