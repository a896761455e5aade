"""A LightningModule with its data, and runs of it with and without a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pairs import Net
from rekindle.integrations.lightning import PlanCallback
from steps_compared import QUICK

BATCH, ROWS = 8, 36  # the last batch of an epoch has four rows


class Lit(pl.LightningModule):
    """Its training step calls `self(x)`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        self.log("rows", float(len(x)))
        loss = nn.functional.cross_entropy(self.predicted(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any) -> None:
        self.log("validation", self.predicted(batch[0]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class CallsNet(Lit):
    """Its training step calls `self.net(x)`."""

    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def data(shuffle: bool = True) -> DataLoader[Any]:
    g = torch.Generator().manual_seed(0)
    set_ = TensorDataset(torch.randn(ROWS, 16, generator=g), torch.randint(3, (ROWS,), generator=g))
    return DataLoader(set_, BATCH, shuffle=shuffle)


def quick(**options: Any) -> PlanCallback:
    return PlanCallback(**{**QUICK, "progress": False, **options})


def trainer(folder: Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    keeps = (
        [ModelCheckpoint(folder / "checkpoints", save_last=True)] if options.get("enable_checkpointing", True) else []
    )
    how = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "default_root_dir": folder, "logger": False} | options
    return pl.Trainer(
        callbacks=[*keeps, *callbacks], enable_progress_bar=False, enable_model_summary=False, **how
    )  # fmt: skip


def fitted(model: pl.LightningModule, with_: pl.Trainer, **fit: Any) -> pl.LightningModule:
    """The model after training from the same random state."""
    torch.manual_seed(1)
    with_.fit(model, data(), **fit)
    return model


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Whether all parameters and buffers are equal, bit for bit."""
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
