"""The first batch of a loader, and the first call that a training step makes: found without using anything up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from rekindle import UsageError
from rekindle.integrations.first_call import first_batch, first_call, random_states_kept

ROWS = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.rand(10, 2))


class Noisy(Dataset):
    """Each row has noise of three generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([i + random.random(), np.random.rand(), float(torch.rand(()))])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(ROWS, 4),
    "shuffled": lambda: DataLoader(ROWS, 4, shuffle=True),
    "by its own generator": lambda: DataLoader(ROWS, 4, shuffle=True, generator=generator()),
    "by a sampler": lambda: DataLoader(ROWS, 4, sampler=WeightedRandomSampler([1.0] * 10, 10, generator=generator())),
    "row by row": lambda: DataLoader(ROWS, batch_size=None, shuffle=True),
    "collated": lambda: DataLoader(ROWS, 4, collate_fn=lambda rows: [y for _, y in rows]),
    "a stream": lambda: DataLoader(Stream(), 4),
    "a stream row by row": lambda: DataLoader(Stream(), batch_size=None),
    "a short stream": lambda: DataLoader(Stream(), 100),
    "noisy": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "a list": lambda: [torch.ones(2), torch.zeros(2)],
}


def seed() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def flat(batch: Any) -> list[torch.Tensor]:
    return [batch] if isinstance(batch, torch.Tensor) else [t for x in batch for t in flat(x)]


@pytest.mark.parametrize("name", LOADERS)
def test_the_batch_is_the_one_that_an_iteration_gives_and_is_still_there(name: str) -> None:
    loader = LOADERS[name]()
    seed()
    first = flat(first_batch(loader))
    assert first
    assert all(map(torch.equal, first, flat(next(iter(loader)))))


def test_several_loaders() -> None:
    seed()
    found = first_batch({"a": DataLoader(ROWS, 4), "b": [DataLoader(ROWS, 2), DataLoader(ROWS, 3)]})
    assert [len(x) for x in (found["a"][0], found["b"][0][0], found["b"][1][0])] == [4, 2, 3]


@pytest.mark.parametrize(
    ("loader", "says"),
    [(iter([1]), "read only once"), ([], "no batch"), (DataLoader(TensorDataset(torch.ones(0, 2))), "no batch")],
)
def test_loaders_that_give_no_batch_are_refused(loader: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        first_batch(loader)


def test_random_states_come_back_after_an_error() -> None:
    def drawn() -> tuple[float, ...]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    def fails() -> None:
        with random_states_kept():
            drawn()
            raise ZeroDivisionError

    seed()
    before = drawn()
    seed()
    with pytest.raises(ZeroDivisionError):
        fails()
    assert drawn() == before


class Owner(nn.Module):
    """A module with a step that calls an augmentation without parameters, then a net."""

    def __init__(self) -> None:
        super().__init__()
        self.augment, self.frozen, self.net = nn.Dropout(0.5), nn.Linear(2, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.went_on = False

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.net(x) * scale

    def training_step(self, batch: Any) -> torch.Tensor:
        x = self.frozen(self.augment(batch[0]))
        result = self.net(x)
        self.went_on = True
        return result

    def with_names(self, batch: Any, index: int) -> torch.Tensor:
        assert index == 0
        return self(self.frozen(batch[0]), scale=2.0)


def test_a_step_runs_up_to_the_first_call_of_a_module_with_parameters_to_train() -> None:
    owner, batch = Owner(), [torch.ones(4, 2)]
    before = torch.get_rng_state()
    found = first_call(owner, owner.training_step, batch, None)
    assert (found.path, found.module) == ("net", owner.net)
    assert [tuple(x.shape) for x in found.sample] == [(4, 4)]
    assert not owner.went_on
    assert torch.equal(before, torch.get_rng_state())
    assert not owner.net._forward_pre_hooks


def test_arguments_by_name_are_the_sample() -> None:
    owner = Owner()
    found = first_call(owner, owner.with_names, [torch.ones(3, 2)], None)
    assert (found.path, found.module) == ("", owner)
    assert found.sample["scale"] == 2.0
    assert found.sample["x"].shape == (3, 4)
    inner = first_call(owner, owner.with_names, [torch.ones(3, 2, requires_grad=True)], "net")
    assert inner.sample[0].requires_grad
    assert inner.sample[0].is_leaf
