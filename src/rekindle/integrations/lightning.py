"""A callback of Lightning that plans a model before training begins, and saves the plan beside the checkpoints."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..api import Budget, restore
from ..arguments import close, flag
from ..ask import WITH_STATE, Goal
from ..errors import RekindleError, UsageError
from ..model.files import read_text
from ..model.plan import Plan
from ..parts.plan import PartsPlan
from ..printed import name as printed_name
from ..saying import notices
from .first_call import REMEDY, FirstCall, first_batch, first_call, random_states_kept
from .saved_plan import OPTIONS, checkpoint_with

FILE = "plan.json"
# Strategies that flatten or partition parameters by themselves once the model is set up: no plan is bound to such tensors.
_REFUSED = ("FSDPStrategy", "DeepSpeedStrategy")
_CONVERTS_DTYPE = ("HalfPrecision", "DoublePrecision")  # of the precision plugins: converting twice does no harm


def _lightning() -> Any:
    """Lightning under the name by which the script imported it: `lightning.pytorch` or `pytorch_lightning`.

    Raises
    ------
    ImportError : it is not installed.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    for known in sorted(names, key=lambda n: n not in sys.modules):
        try:
            return importlib.import_module(known)
        except ModuleNotFoundError as e:
            if e.name not in (known, known.partition(".")[0]):
                raise
    raise ImportError(
        "rekindle.integrations.lightning needs Lightning, which is not installed; run: pip install lightning"
    )


_LIGHTNING = _lightning()

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = _LIGHTNING.Callback


class PlanCallback(Callback):
    """Plans the model in `setup`, before Lightning wraps it for several processes: `Trainer(callbacks=[PlanCallback("8GiB")])`.

    Parameters
    ----------
    budget : as in `rekindle.checkpoint`, whose other arguments are taken by name too: max_overhead, minimize, effort, parts,
        on_new_shape, and so on. `optimizer`: without it, a budget in bytes counts the state of the optimizer that
        `configure_optimizers` returns, if it returns one.
    module : dotted name of the submodule to plan ("net"); "" is the LightningModule itself, whose `forward` is planned. None:
        the first module with parameters to train that `training_step` calls: the LightningModule where it calls
        `self(x)`, its submodule where it calls `self.net(x)`.
    sample : the arguments of that module, as `rekindle.checkpoint` takes them, or a function from a batch on the device to
        them. None: `training_step` runs on the first batch of the training data, up to the call of the module.
    file : the plan's file. None: plan.json in the folder of the checkpoints, else of the logs, else in `default_root_dir`.
        False: none. A plan that is there is used if it was made for the same model, shapes and options.
    restore_after : take the plan off when training is over.

    The sample is that of one process; other shapes are planned as `on_new_shape` says.

    Raises
    ------
    UsageError : an unknown argument. In `setup` also: there is no such module, or the module or its sample cannot be found out.
    TraceError, InfeasibleBudget, ParityError : in `setup`, as `rekindle.checkpoint`.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        module: str | None = None,
        sample: Any = None,
        file: str | PathLike[str] | bool | None = None,
        restore_after: bool = False,
        **options: Any,
    ):
        super().__init__()
        for k in options:
            if k not in OPTIONS:
                known = ("module", "sample", "file", "restore_after", *OPTIONS)
                raise UsageError(
                    f"PlanCallback has no argument {k!r}; {close(k, known)}it takes module, sample, file, restore_after and "
                    "those of rekindle.checkpoint"
                )
        if options.get("offload") == WITH_STATE:
            raise UsageError(
                'offload="optimizer" needs the optimizer that steps, and PlanCallback plans before Lightning makes it; leave '
                "PlanCallback out, and call rekindle.checkpoint(…, optimizer=…) in on_train_start"
            )
        Goal.parse(budget, options.get("max_overhead"), options.get("minimize"))
        flag("restore_after", restore_after)
        if file is True or not isinstance(file, str | PathLike | bool | None):
            raise UsageError(f"file={file!r:.80} is no file; give a path, False for no file, or leave it out")
        self._options = options if budget is None else {"budget": budget, **options}
        self._name, self._sample, self._file, self._restores = module, sample, file, restore_after
        self._planned: nn.Module | None = None
        self._unsaved = False

    @property
    def plan(self) -> Plan | PartsPlan | None:
        """The plan that the model was given; None before `setup`."""
        return None if self._planned is None else getattr(self._planned.forward, "plan", None)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Plan the model, unless an earlier fit did. Lightning calls this in every process, before it wraps the model."""
        if stage != "fit" or self._is_planned(pl_module):
            return
        strategy = type(trainer.strategy)
        if any(c.__name__ in _REFUSED for c in strategy.__mro__):
            raise UsageError(
                f"PlanCallback cannot plan for {strategy.__name__}, which replaces the model's parameters by pieces of its "
                "own; use the strategy ddp, or fully_shard in configure_model on blocks that were planned (parts=…)"
            )
        if self._name:
            _submodule(pl_module, self._name)
        # Lightning converts and moves the model after `setup`; the plan is for the model as it trains.
        if type(trainer.precision_plugin).__name__ in _CONVERTS_DTYPE:
            trainer.precision_plugin.convert_module(pl_module)
        pl_module.to(trainer.strategy.root_device)
        options = dict(self._options)
        if "optimizer" not in options and isinstance(options.get("budget"), str | int):
            options["optimizer"] = _optimizer(pl_module)
        file = self._path(trainer)
        text = _text_of(file) if trainer.is_global_zero else None
        saved = trainer.strategy.broadcast(text)  # or a rank that cannot see the file would plan by itself
        with trainer.precision_plugin.train_step_context():
            call = self._call(trainer, pl_module)
            why = checkpoint_with(saved, call.module, call.sample, options)
        self._planned, self._unsaved = call.module, bool(why)
        if trainer.is_global_zero and options.get("progress") is not False:
            kind = type(call.module).__name__
            at = f"{kind} ({call.path})" if call.path else kind
            how = "planned" if saved is None else f"the plan of {printed_name(str(file))} is in use"
            if saved is not None and why:
                how = f"the plan of {printed_name(str(file))} is not used ({why}), so planned anew"
            notices.say(f"{at}: {how}; {self.plan.sentence if self.plan is not None else ''}")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the plan. The folder of the checkpoints is not known before."""
        file, plan = self._path(trainer), self.plan
        if not self._unsaved or plan is None or file is None or not trainer.is_global_zero:
            return
        self._unsaved = False
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            plan.save(file)
        except (OSError, RekindleError) as e:
            notices.warn(f"the plan could not be saved: {e}; training goes on, and the next run plans anew")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the plan off, if that was asked for."""
        if stage == "fit" and self._restores and self._planned is not None:
            restore(self._planned)
            self._planned = None

    def _is_planned(self, pl_module: nn.Module) -> bool:
        """Whether an earlier fit planned this model."""
        known = self._planned
        return known is not None and self.plan is not None and any(m is known for m in pl_module.modules())

    def _path(self, trainer: Trainer) -> Path | None:
        """The plan's file; None: there is none, or its folder is not known yet. All ranks call this together."""
        if isinstance(self._file, str | PathLike):
            return Path(self._file)
        if self._file is False or getattr(trainer, "fast_dev_run", False):
            return None
        checkpoints = trainer.checkpoint_callback
        folder = getattr(checkpoints, "dirpath", None)
        if checkpoints is None:
            folder = trainer.log_dir or trainer.default_root_dir
        return None if folder is None or "://" in str(folder) else Path(folder) / FILE

    def _call(self, trainer: Trainer, pl_module: LightningModule) -> FirstCall:
        """The module to plan and its sample."""
        given, name = self._sample, self._name or ""
        if given is not None and not callable(given):
            on = trainer.strategy.root_device
            sample = trainer.precision_plugin.convert_input(_LIGHTNING.utilities.move_data_to_device(given, on))
            return FirstCall(name, _submodule(pl_module, name), sample)
        with random_states_kept():  # a data set may be split at random when it is asked for
            batch = _on_device(trainer, pl_module, first_batch(_train_data(trainer)))
        if given is not None:
            return FirstCall(name, _submodule(pl_module, name), given(batch))
        with _no_log(pl_module):
            return first_call(pl_module, pl_module.training_step, batch, self._name)


def _submodule(pl_module: nn.Module, name: str) -> nn.Module:
    try:
        return pl_module.get_submodule(name)
    except AttributeError:
        names = [n for n, _ in pl_module.named_modules() if n]
        raise UsageError(
            f"module={name!r} names no submodule of {type(pl_module).__name__}; {close(name, names)}it must be there when "
            "callbacks are set up: make it in __init__, or call rekindle.checkpoint where it is made"
        ) from None


def _text_of(file: Path | None) -> str | None:
    """The text of a plan's file; None: there is none; "": it is unreadable."""
    if file is None or not file.exists():
        return None
    try:
        return read_text(file, regular=True)
    except (OSError, RekindleError):
        return ""


def _train_data(trainer: Trainer) -> Any:
    """The data loader that training will use, before Lightning gives each process its share.

    Raises
    ------
    UsageError : there is none yet.
    """
    try:  # there is no public name for loaders that were given to `fit`, before they are set up
        return trainer.fit_loop._data_source.dataloader()
    except Exception as e:
        raise UsageError(
            f"the training data cannot be had when callbacks are set up: {type(e).__name__}: {e}; {REMEDY}, make the data in "
            "__init__ or in a LightningDataModule, or call rekindle.checkpoint at the end of your own setup"
        ) from e


def _on_device(trainer: Trainer, pl_module: LightningModule, batch: Any) -> Any:
    """The batch as `training_step` gets it."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = pl_module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


@contextlib.contextmanager
def _no_log(pl_module: LightningModule) -> Iterator[None]:
    """Inside, `self.log` does nothing: there are no results yet to which it could add."""
    names = ("log", "log_dict")
    for k in names:
        pl_module.__dict__[k] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for k in names:
            del pl_module.__dict__[k]


def _optimizer(pl_module: LightningModule) -> torch.optim.Optimizer | None:
    """The one optimizer that the module configures, made to be looked at; None: it has several, or makes them only later. The
    verdict on the plan then says that their state is not counted."""
    with random_states_kept():
        try:
            made = pl_module.configure_optimizers()
        except Exception:
            return None
    found = [x for x in _flat(made) if isinstance(x, torch.optim.Optimizer)]
    return found[0] if len(found) == 1 else None


def _flat(made: Any) -> Iterator[Any]:
    if isinstance(made, dict):
        yield made.get("optimizer")
    elif isinstance(made, list | tuple):
        for x in made:
            yield from _flat(x)
    else:
        yield made
