"""torch's own transformer modules are captured whole, with masks that forward makes, is given, or holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every, few, sweep
from steps_compared import assert_same_steps, planned_and_eager, plans, step

WIDTH, LENGTH = 16, 6
causal = nn.Transformer.generate_square_subsequent_mask


def _masked_once(n: int) -> Tensor:
    mask = (torch.triu(torch.ones(n, n)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def _by_rows(n: int) -> Tensor:
    mask = torch.full((n, n), float("-inf"))
    for i in range(n):
        mask[i, : i + 1] = 0.0
    return mask


MASKS: dict[str, Callable[[int], Tensor]] = {
    "torch's": causal,
    "boolean": lambda n: torch.ones(n, n, dtype=torch.bool).triu(1),
    "product": lambda n: torch.triu(torch.ones(n, n) * float("-inf"), diagonal=1),
    "of the tutorial": _masked_once,
    "written row by row": _by_rows,
    "filled in place": lambda n: torch.empty(n, n).fill_(float("-inf")).triu_(1),
    "not causal": lambda n: torch.zeros(n, n),
}


class Decoder(nn.Module):
    def __init__(self, mask: Callable[[int], Tensor], layers: int = 1, **how: Any) -> None:
        super().__init__()
        self.embed, self.mask = nn.Embedding(9, WIDTH), mask
        layer = nn.TransformerDecoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True, **how)
        self.decoder = nn.TransformerDecoder(layer, layers)

    def forward(self, ids: Tensor, memory: Tensor, memory_ids: Tensor) -> Tensor:
        return self.decoder(
            self.embed(ids), memory, tgt_mask=self.mask(ids.shape[1]), tgt_key_padding_mask=ids == 0,
            memory_key_padding_mask=memory_ids == 0,
        )  # fmt: skip


def decoded(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences with padding: target ids, memory, memory ids."""
    g = torch.Generator().manual_seed(seed)
    ids, memory_ids = (torch.randint(1, 9, (2, n), generator=g) for n in (LENGTH, 4))
    ids[1, 4:] = memory_ids[0, 3:] = 0
    return ids, torch.rand(2, 4, WIDTH, generator=g), memory_ids


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Support for mismatched")
        warnings.simplefilter("error", rekindle.RekindleWarning)
        yield


@pytest.mark.parametrize("how", few(MASKS, ["torch's", "written row by row"]))
def test_a_decoder_with_a_mask_made_in_forward(how: str) -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Decoder(MASKS[how]), decoded(0))
    assert_same_steps(planned, eager, decoded)
    assert plans(planned) == 1


@sweep
def test_a_decoder_within_a_part_of_its_memory() -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Decoder(causal, 2, norm_first=True), decoded(0), minimize=None, budget=0.6)
    assert planned.forward.plan.overhead > 0  # type: ignore[union-attr]
    assert_same_steps(planned, eager, decoded)


class Translates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.1, batch_first=True)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = causal(target.shape[1]) if mask is None else mask
        return self.transformer(source, target, tgt_mask=mask)


def pairs(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(2, 4, WIDTH, generator=g), torch.rand(2, LENGTH, WIDTH, generator=g)


@sweep
def test_a_transformer_with_a_mask_made_in_forward() -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Translates(), pairs(0))
    assert_same_steps(planned, eager, pairs)


@sweep
def test_another_mask_as_argument_has_another_plan() -> None:
    torch.manual_seed(0)
    open_mask = torch.zeros(LENGTH, LENGTH)
    planned, eager = planned_and_eager(Translates(), (*pairs(0), causal(LENGTH)))
    for mask in (causal(LENGTH), open_mask, causal(LENGTH), open_mask):
        assert_same_steps(planned, eager, lambda i, m=mask: (*pairs(i), m), count=1)
    assert plans(planned) == 2


class Encoder(nn.Module):
    """Holds its mask as a buffer, or as a plain attribute."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.register_buffer("mask", causal(LENGTH)) if buffer else setattr(self, "mask", causal(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, mask=self.mask)


@pytest.mark.parametrize("buffer", every(2, [True, False]))
def test_another_mask_in_the_module_has_another_plan(buffer: bool) -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Encoder(buffer), pairs(0)[1])
    for write in (lambda t: None, torch.Tensor.zero_, lambda t: t.copy_(causal(LENGTH))):
        for m in (planned, eager):
            write(m.mask)  # type: ignore[arg-type]
        assert_same_steps(planned, eager, lambda i: pairs(i)[1], count=2)
    assert plans(planned) == 2


@sweep
def test_masks_by_lengths_are_followed_to_other_lengths() -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Decoder(causal), decoded(0))
    ids, memory, memory_ids = decoded(0)
    for length in (5, 4, 3, 2):
        sample = ids[:, :length], memory, memory_ids
        assert torch.equal(step(planned, sample)["loss"], step(eager, sample)["loss"])
