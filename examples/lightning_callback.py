"""Lightning: a callback plans in setup, reports, and saves the plan beside the checkpoints.

Run: python examples/lightning_callback.py
"""

import copy

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rekindle.integrations.lightning


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1)) for _ in range(4)]
        self.net = nn.Sequential(*blocks, nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(model, folder, *callbacks):
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=[*callbacks], default_root_dir=folder, logger=False)
    pl.seed_everything(1)
    trainer.fit(model, DataLoader(TensorDataset(x, y), 32, shuffle=True))
    return list(model.parameters())


x, y, model = torch.randn(128, 64), torch.randint(10, (128,)), Classifier()
plain = copy.deepcopy(model)
planned = fit(model, "out/lightning_planned", rekindle.integrations.lightning.PlanCallback(budget=0.7, effort="quick"))
same, used = all(map(torch.equal, planned, fit(plain, "out/lightning_plain"))), rekindle.status(model.net).calls
print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 4")
