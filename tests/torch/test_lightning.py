"""PlanCallback in real Lightning: the weights after `fit` are those of a fit without it, and the plan ran."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle

pytest.importorskip("lightning")

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from asked import searches
from lightning_models import BATCH, CallsNet, Lit, data, fitted, quick, same_weights, trainer
from marks import every, few, sweep
from rekindle.integrations.lightning import PlanCallback
from scripts import printed_by
from steps_compared import plans

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in ("does not have many workers", "treespec, LeafSpec", "exists and is not empty", "no `val_dataloader`")
]  # fmt: skip

CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16 mixed": {"precision": "bf16-mixed"},
    "bfloat16": {"precision": "bf16-true"},
    "accumulated": {"accumulate_grad_batches": 2},
    "clipped": {"gradient_clip_val": 0.1},
}


KINDS = [(kind, case) for kind in (Lit, CallsNet) for case in CASES]
KEPT = [(Lit, "float32"), (CallsNet, "bfloat16 mixed"), (CallsNet, "accumulated")]


@pytest.mark.parametrize(("kind", "case"), few(KINDS, KEPT))
def test_weights_are_those_of_a_fit_without_a_plan(tmp_path: Path, kind: Any, case: str) -> None:
    torch.manual_seed(0)
    model = kind()
    twin = copy.deepcopy(model)
    plans_it = quick()
    fitted(model, trainer(tmp_path / "planned", plans_it, **CASES[case]), val_dataloaders=data(shuffle=False))
    fitted(twin, trainer(tmp_path / "plain", **CASES[case]), val_dataloaders=data(shuffle=False))
    assert same_weights(model, twin)
    planned = model if kind is Lit else model.net
    assert planned.forward.plan is plans_it.plan
    assert sum(b.uses for b in planned.forward.bounds) == 10  # of 10 steps, two with a batch of four rows
    assert plans(planned) == 2


def test_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    """One epoch with a plan, then another run that goes on from its checkpoint: two plain epochs in one go are the same."""
    torch.manual_seed(0)
    model = Lit()
    twin, again = copy.deepcopy(model), Lit()
    fitted(model, trainer(tmp_path, quick(), max_epochs=1))
    fitted(twin, trainer(tmp_path / "plain", max_epochs=1))
    last = tmp_path / "checkpoints" / "last.ckpt"
    with searches("storages") as asked:
        resumed = quick()
        fitted(again, trainer(tmp_path, resumed), ckpt_path=last)
    goes_on = fitted(Lit(), trainer(tmp_path / "plain"), ckpt_path=tmp_path / "plain" / "checkpoints" / "last.ckpt")
    assert same_weights(again, goes_on)
    assert not same_weights(again, model)
    assert len(asked) <= 1  # of the batch of four rows: the plan of eight was read from its file
    assert resumed.plan is not None
    assert resumed.plan.schedule == rekindle.load(tmp_path / "checkpoints" / "plan.json").schedule


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text, "the plan of .* is in use"),
        (lambda text: text[:-9], "is not used .*, so planned anew"),
        (lambda text: "", "is not used .*, so planned anew"),
    ],
)
def test_a_saved_plan_is_used_where_it_can_be(tmp_path: Path, capsys: Any, change: Any, says: str) -> None:
    file = tmp_path / "plan.json"
    fitted(Lit(), trainer(tmp_path, quick(file=file), max_steps=1))
    before = rekindle.load(file)
    file.write_text(change(file.read_text()))
    capsys.readouterr()
    fitted(Lit(), trainer(tmp_path, quick(file=file, progress=None), max_steps=1))
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("rekindle: Lit")]
    assert len(lines) == 1
    assert re.search(says, lines[0])
    assert rekindle.load(file).schedule == before.schedule  # a damaged file is written again


@pytest.mark.parametrize(
    "options", every(3, [{"max_overhead": 0.1, "minimize": None}, {"seed": 3}, {"parts": "net.blocks.*"}])
)
def test_a_saved_plan_for_something_else_is_not_used(tmp_path: Path, options: dict[str, Any], capsys: Any) -> None:
    file = tmp_path / "plan.json"
    fitted(Lit(), trainer(tmp_path, quick(file=file), max_steps=1))
    callback = quick(file=file, module="", progress=None, **options)
    fitted(Lit(), trainer(tmp_path, callback, max_steps=1))
    assert "is not used (the saved plan" in capsys.readouterr().err
    found = rekindle.load(file)
    assert found.options.goal == callback.plan.options.goal
    assert found.options.seed == options.get("seed", 0)


def test_plans_of_parts_are_saved_and_used_again(tmp_path: Path, capsys: Any) -> None:
    torch.manual_seed(0)
    model = Lit()
    twin, again = copy.deepcopy(model), copy.deepcopy(model)
    options = {"parts": "net.blocks.*", "minimize": "memory", "solver": "storages", "cost": "flops"}
    fitted(model, trainer(tmp_path, PlanCallback(**options, progress=False)))
    fitted(twin, trainer(tmp_path / "plain"))
    second = PlanCallback(**options)
    fitted(again, trainer(tmp_path, second))
    assert same_weights(model, twin)
    assert same_weights(again, twin)
    assert "plan.json is in use" in capsys.readouterr().err
    assert isinstance(second.plan, rekindle.PartsPlan)
    assert all(b.forward.last is not None for b in again.net.blocks)


def test_the_optimizer_is_counted_in_a_byte_budget(tmp_path: Path) -> None:
    callback = quick(minimize=None, budget="8MiB")
    fitted(Lit(), trainer(tmp_path, callback, max_steps=1))
    assert isinstance(callback.plan, rekindle.Plan)
    assert callback.plan.trace is not None
    held = sum(p.nbytes for p in Lit().parameters())
    assert callback.plan.trace.state_bytes >= 2 * held  # AdamW's, which the plan itself does not keep alive
    assert "not counted" not in callback.plan.sentence


@pytest.mark.parametrize("sample", every(2, [torch.ones(8, 16), lambda batch: batch[0], {"x": torch.ones(8, 16)}]))
def test_a_sample_may_be_given(tmp_path: Path, sample: Any) -> None:
    model = CallsNet()
    callback = quick(module="net", sample=sample, on_new_shape="error")
    fitted(model, trainer(tmp_path, callback, max_steps=2))
    assert model.net.forward.last.uses == 2


def test_taken_off_again_and_fitted_twice(tmp_path: Path) -> None:
    model, callback = Lit(), quick(restore_after=True)
    fitted(model, trainer(tmp_path, callback, max_steps=1))
    assert "forward" not in model.__dict__
    assert callback.plan is None
    stays = quick()
    fitted(model, trainer(tmp_path, stays, max_steps=1))
    with searches("storages") as asked:
        fitted(model, trainer(tmp_path, stays, max_steps=1))
    assert not asked


class Two(Lit):
    """Two modules that the training step calls one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.net = nn.Linear(16, 16), nn.Linear(16, 100)

    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.small(x))


class Fails(Lit):
    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no rows")


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (Lit(), {"module": "nets"}, "module='nets' names no submodule of Lit; did you mean 'net'"),
        (CallsNet(), {"module": ""}, "does not call CallsNet|does not call a module"),
        (Two(), {}, "first calls 'small', which holds 14% .* such as 'net' or 'small'"),
        (Fails(), {}, "fails before it calls a module: ValueError: no rows; give the arguments .* sample="),
    ],
)
def test_refusals_say_what_to_do(tmp_path: Path, model: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(rekindle.UsageError, match=says):
        fitted(model, trainer(tmp_path, quick(**options), max_steps=1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budgets": 1}, "did you mean 'budget'"),
        ({"budget": 0.5, "file": True}, "file=True"),
        ({}, "give exactly one of budget"),
        ({"minimize": "memory", "restore_after": 3}, "restore"),
    ],
)
def test_arguments_are_checked_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rekindle.UsageError, match=says):
        PlanCallback(**options)


def test_looking_for_the_sample_uses_nothing_up(tmp_path: Path) -> None:
    """The order of batches and the random state are those of a fit without the callback."""
    seen: dict[bool, list[Any]] = {}
    for with_plan in (False, True):
        rows: list[Any] = []

        class Notes(Lit):
            def on_train_batch_start(self, batch: Any, batch_idx: int, rows: list[Any] = rows) -> None:
                rows.append((batch[0].tolist(), torch.get_rng_state().tolist()))

        fitted(Notes(), trainer(tmp_path / str(with_plan), *([quick()] if with_plan else [])))
        seen[with_plan] = rows
    assert len(seen[True]) == 10
    assert seen[True] == seen[False]


def test_data_that_can_be_read_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(rekindle.UsageError, match="can be read only once; give the arguments"):
        trainer(tmp_path, quick(), max_steps=1).fit(Lit(), iter(data()))


@sweep
def test_two_processes_run_by_one_plan(tmp_path: Path) -> None:
    """The strategy ddp under torchrun: one rank plans and saves, both run, and a second fit reads the file on both. Then FSDP2:
    planned blocks are sharded in `configure_model`."""
    script = Path(__file__).parents[1] / "support" / "lightning_ranks.py"
    done = printed_by(script, tmp_path, processes=2)
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for of_rank in seen:
        assert of_rank["world"] == 2
        assert of_rank["same"]
        assert of_rank["again"]
        assert (
            of_rank["uses"] == 6
        )  # of 18 rows for each rank: two batches of eight and one of two in each of two epochs
        assert of_rank["plans"] == 2
        assert of_rank["sharded"]
        assert of_rank["planned blocks"] == [6] * 4
    assert seen[0]["steps"] == seen[1]["steps"] == seen[0]["read"] == seen[1]["read"]
    assert sum(of_rank["searches"] for of_rank in seen) > sum(of_rank["searches again"] for of_rank in seen)
    lines = [x for x in done.splitlines() if "plan.json is in use" in x]
    assert len(lines) == 1, done


class Data(pl.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.rows = data().dataset

    def train_dataloader(self) -> Any:
        return DataLoader(self.rows, BATCH)


class HasData(CallsNet):
    def train_dataloader(self) -> Any:
        halves = torch.utils.data.random_split(data().dataset, [0.5, 0.5])  # draws random numbers
        return DataLoader(halves[0], BATCH, shuffle=True)


@pytest.mark.parametrize(("kind", "where"), [(CallsNet, Data), (HasData, None)])
def test_data_of_a_data_module_and_of_the_model(tmp_path: Path, kind: Any, where: Any) -> None:
    torch.manual_seed(0)
    model, twin, found = kind(), kind(), []
    twin.load_state_dict(model.state_dict())
    for net, callbacks in ((model, [quick()]), (twin, [])):
        torch.manual_seed(1)
        trainer(tmp_path / str(len(found)), *callbacks, max_epochs=1).fit(net, datamodule=where and where())
        found.append(net)
    assert same_weights(*found)
    assert model.net.forward.last is not None


def test_without_lightning_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None; import {}.lightning"
    done = subprocess.run(
        [sys.executable, "-c", code.format("rekindle.integrations")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        "ImportError: rekindle.integrations.lightning needs Lightning, which is not installed; run: pip" in done.stderr
    )


@pytest.mark.parametrize(
    ("options", "how", "where"),
    [
        ({}, {}, "checkpoints/plan.json"),
        ({}, {"enable_checkpointing": False}, "plan.json"),
        ({"file": "of/mine.json"}, {}, "of/mine.json"),
        ({"file": False}, {}, None),
        ({}, {"fast_dev_run": True, "enable_checkpointing": False}, None),
    ],
)
def test_where_the_plan_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], how: dict[str, Any], where: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    fitted(Lit(), trainer(tmp_path, quick(**options), max_steps=1, **how))
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.json")] == ([] if where is None else [where])


def test_a_plan_that_cannot_be_saved_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    model = Lit()
    with pytest.warns(rekindle.RekindleWarning, match="could not be saved: .*; training goes on"):
        fitted(model, trainer(tmp_path, quick(file=tmp_path / "taken" / "plan.json"), max_steps=1))
    assert model.forward.last.uses == 1


class Logs(CallsNet):
    """Logs before it calls its net."""

    def predicted(self, x: torch.Tensor) -> torch.Tensor:
        self.log_dict({"mean": x.mean()})
        return self.net(x)


def test_a_step_may_log_before_it_calls_the_net(tmp_path: Path) -> None:
    model, callback = Logs(), quick()
    with_logs = trainer(tmp_path, callback, max_steps=1)
    fitted(model, with_logs)
    assert callback.plan is model.net.forward.plan
    assert {"rows", "mean"} <= with_logs.callback_metrics.keys()
