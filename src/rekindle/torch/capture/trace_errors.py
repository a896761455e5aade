"""Messages for captures that failed: the user's line, the reason, and what to do."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ...errors import TraceError
from ...printed import listed
from ...saying.frames import in_short, users_line
from ..private import DataDependentOutputException, DynamicOutputShapeException, Scripted
from ..situation.callables import line_that_sets
from ..situation.module_paths import BEHIND, printable

_DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
# Attributes that hold the probability of skipping a layer: self.layerdrop, self.config.layerdrop, self.drop_path, …
_LEAVES_OUT = re.compile(
    r"\bself((?:\.\w+)*\.\w*(?:layer_?drop|drop_?path|skip_?prob|survival_?prob|stochastic_depth)\w*)", re.IGNORECASE
)
# Modules of operators that take functions.
FUNCTIONS_OF_TORCH = ("torch._higher_order_ops", "torch.nn.attention.flex_attention")
_NO_LAYOUT = "layout_impl is only implemented for TensorImpl"  # torch's words for a compressed sparse tensor
NAMES_MOST = 3  # in a message
_READS_MEMORY = "Cannot access data pointer of Tensor"  # torch's words
# Reasons after which tensors behind the failing line may have another shape at each step.
SHAPE_FROM_DATA, READS = "makes a shape depend on the data", "reads a tensor"
NO_BACKWARD = "has no backward"  # such a submodule holds nothing
# Reasons after which the next call may be another, since forward changes what the capture depends on.
SETS_STATE, MOVES = "changes its own state", "moves or reshapes its own tensors"
TAKES_FUNCTIONS = "which takes functions"  # end of the reason
LETS_REQUIRE_GRAD = "lets its argument require grad"
UNKNOWN = "while it is captured"  # end of the reason where no cause is known
OF_FIRST_CALLS, BY_LINE = (SETS_STATE, MOVES), (MOVES, LETS_REQUIRE_GRAD)  # BY_LINE: a second capture finds the line


class TakesFunctions(Exception):
    """The model calls an operator that takes functions."""


@contextlib.contextmanager
def functions_refused() -> Iterator[None]:
    """Inside, an operator that takes functions (torch.cond) raises `TakesFunctions` where it calls torch.compile, which would
    fail and remember for good that these functions cannot be compiled."""
    own, here = torch.compile, threading.get_ident()

    def compile(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        if threading.get_ident() == here and caller.f_globals["__name__"].startswith(FUNCTIONS_OF_TORCH):
            raise TakesFunctions
        return own(*args, **kwargs)

    torch.compile = compile  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = own


def trace_error(e: BaseException, model: nn.Module) -> TraceError:
    """The TraceError for a call of the model that could not be captured because of `e`."""
    if isinstance(e, TraceError):
        return e
    frame, words = users_line(e)
    behind = getattr(e, BEHIND, "")
    where = words or (f"{behind}, in its backward" if behind else "an unknown line")
    data_dependent = isinstance(e, _DATA_DEPENDENT) or "data-dependent" in str(e).lower()
    if isinstance(e, DynamicOutputShapeException):
        return TraceError(
            f"the shape of the result of {e.func} depends on tensor values at {where}. A plan is made for one graph, whatever "
            "the data. Instead of boolean indexing or nonzero, keep the shape: torch.where, or a product with the mask; "
            "or make the choice outside of forward, or plan the submodules before and after that line",
            line="" if words else in_short(behind),
            reason=SHAPE_FROM_DATA,
        )
    if data_dependent and (drop := _leaves_layers_out(frame, model)):
        name, value = drop
        return TraceError(
            f"a random number decides at {where} whether a layer runs. A plan is made for one graph, with the layer or "
            f"without it: set {name} = 0 (it is {value}), or plan the layers one by one",
            reason="draws a random number that decides whether a layer runs",
        )
    if data_dependent and _checks_a_distribution(e):
        return TraceError(
            f"torch.distributions checks the values of its arguments at {where}, and raises an error if they are not valid. "
            "A plan is made for one graph, whatever the data: give validate_args=False to that distribution, or call "
            "torch.distributions.Distribution.set_default_validate_args(False) before planning",
            reason="lets torch.distributions check values: validate_args=False",
        )
    if data_dependent:
        return TraceError(
            f"the model's control flow or shapes depend on tensor values at {where}. A plan is made for one graph, "
            "whatever the data. Take the decision outside of forward, or write it with torch.where or a mask; or plan "
            "the submodules before and after that line",
            reason=READS,
        )
    if isinstance(e, RuntimeError) and _READS_MEMORY in str(e):
        return TraceError(
            f"a kernel reads the memory of tensors at {where}, and while a call is captured they have none. cuDNN's recurrent "
            "layers (nn.LSTM, nn.GRU and nn.RNN on a GPU) do so. rekindle.checkpoint plans the parts around such a layer; to "
            "plan the layer too, run it without cuDNN: torch.backends.cudnn.enabled = False",
            reason="runs a kernel that reads memory while it is captured",
        )
    if isinstance(e, Scripted) or "TorchScript interpreter" in str(e):
        return TraceError(
            f"TorchScript (torch.jit) runs {_scripted(e, model)} at {where}. It optimises its code by itself, with other bits "
            "or kernels from call to call, so its code cannot be captured. rekindle.checkpoint plans the parts around it; to "
            "plan it too, use the module or function that it was made from",
            reason="runs TorchScript",
        )
    text = str(e).strip().splitlines()
    if "sparse" in str(e).lower() or _NO_LAYOUT in str(e):
        return TraceError(
            f"the model works on a sparse tensor at {where}, whose size a plan cannot count on. rekindle.checkpoint plans the "
            "parts around that line; to plan the whole, use a dense tensor there: to_dense(), or sparse=False for an embedding",
            reason="works on a sparse tensor",
        )
    frames = [f for f, _ in traceback.walk_tb(e.__traceback__)]
    if own := [f for f in frames if str(f.f_globals.get("__name__", "")).startswith(FUNCTIONS_OF_TORCH)]:
        return TraceError(
            f"the model calls {own[0].f_code.co_name} at {where}. Such an operator, which takes functions (torch.cond, "
            "flex_attention, …), cannot be planned yet. Use torch.where, or plan the submodules around it",
            reason=f"calls {own[0].f_code.co_name}, {TAKES_FUNCTIONS}",
        )
    starts = [i for i, f in enumerate(frames) if f.f_code.co_name == "_engine_run_backward"]
    backwards = len(starts) if frame is not None and frame in frames[starts[0] if starts else 0 :] else 0
    # Copies of torch's checkpointing say that they take no `.grad()`.
    if backwards > 1 or backwards and "heckpoint" in str(e):
        return TraceError(
            f"code in backward calls backward() itself at {where}, which adds to .grad of parameters by the way. Let the "
            "autograd Function take the parameters as arguments, and return what torch.autograd.grad gives for them. If it is "
            "a checkpoint, switch it off, since Rekindle itself decides what runs again. rekindle.checkpoint plans the parts "
            "around such code",
            reason="calls backward() in backward",
        )
    if backwards and isinstance(e, AttributeError | LookupError | TypeError):
        return TraceError(
            f"code in backward fails at {where}: {type(e).__name__}: {text[0] if text else ''}. While a call is captured, "
            "lists and dicts that forward or its hooks fill are empty again before backward begins, and a planned step does "
            "not fill them. Take such hooks off before planning; rekindle.checkpoint plans the parts around them",
            reason="runs code in backward that reads what forward filled",
        )
    return TraceError(
        f"the model cannot be captured: {type(e).__name__} at {where}: {text[0] if text else ''}. "
        "Check that the call works with this sample; plan the submodules around that line if it must stay",
        line="" if words else in_short(behind),
        reason=f"raises {type(e).__name__} {UNKNOWN}",
    )


def changed_in_backward(names: Sequence[str], by: Sequence[str]) -> TraceError:
    """The error for code in backward that changes more than the gradients which it returns. names : of what it changes.
    by : code that may be meant, in words."""
    what = listed(map(printable, names), NAMES_MOST)
    where = f" ({', '.join(by[:NAMES_MOST])})" if by else ""
    return TraceError(
        f"code in backward{where} sets or writes to {what}, beside the gradients that it returns; a planned step would not. "
        "Let an autograd Function take what needs gradients as arguments, and return the gradients; take hooks off that keep "
        "more. rekindle.checkpoint plans the parts around such code",
        reason=f"sets {what} in backward",
    )


def _scripted(e: BaseException, model: nn.Module) -> str:
    """The submodule or the function that TorchScript ran, in words."""
    names = {id(m): name for name, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)}
    inside = [names[i] for f, _ in traceback.walk_tb(e.__traceback__) if (i := id(f.f_locals.get("self"))) in names]
    if inside:
        return f"the submodule {printable(inside[-1])!r}"
    return f"the function {printable(str(e))!r}" if isinstance(e, Scripted) else "a function"


def moves(model: nn.Module, names: Sequence[str], line: str) -> TraceError:
    """The error for a forward that does more to its model's tensors than write numbers into them. line : of the user's code."""
    inside = [
        k for k, m in model.named_children()
        if any(p.requires_grad for p in m.parameters()) and not any(name.startswith(f"{k}.") for name in names)
    ]  # fmt: skip
    parts = f", or plan the submodules that do no such thing: parts={inside[:3]}" if inside else ""
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    at = f" at {line}" if line else ""
    return TraceError(
        f"forward gives {', '.join(names[:3])}{more} another place, shape, flag or hook{at}. Planned steps write new numbers "
        "into a module's tensors, and do nothing else to them. If only the first call does this, call the model once before "
        "planning. If every call does, write in place (t.copy_(…) in place of t.data = …), do it outside of forward"
        + parts,
        line=in_short(line),
        reason=MOVES,
    )


def lets_require_grad(names: Sequence[str], line: str) -> TraceError:
    """The error for a forward that sets the flag of tensors which it is given. line : of the user's code."""
    which, at = ", ".join(map(printable, names[:NAMES_MOST])), f" at {line}" if line else ""
    return TraceError(
        f"forward lets its argument {which} require grad{at}. A planned step leaves the flags of the caller's tensors as they "
        "are. Let a copy require grad (x = x.clone().requires_grad_()), or set the flag before each call, also of the sample",
        line=in_short(line),
        reason=LETS_REQUIRE_GRAD,
    )


def depends_on_itself(model: nn.Module, names: Sequence[str], line: str = "") -> TraceError:
    """The error for a forward whose result depends on what it changes. line : of the user's code; "": those that set it."""
    lines = [line] if line else list(dict.fromkeys(x for k in names if (x := line_that_sets(model, k))))
    where = f" ({'; '.join(lines)})" if lines else ""
    return TraceError(
        f"the result of forward depends on {listed(names)}, which forward changes itself{where}; a plan is "
        "made for one graph. If only the first call sets it, call the model once before planning. If every call sets it, keep "
        "it in a buffer, or change it outside of forward",
        reason=SETS_STATE,
    )


def _checks_a_distribution(e: BaseException) -> bool:
    """Whether the values were asked for by a distribution of torch that checks its arguments."""
    frames = [f for f, _ in traceback.walk_tb(e.__traceback__)]
    return any(
        str(f.f_globals.get("__name__", "")).startswith("torch.distributions.")
        and f.f_code.co_name in ("__init__", "_validate_sample")  # sampling may read values too, whatever is checked
        for f in frames
    )


def _leaves_layers_out(frame: FrameType | None, model: nn.Module) -> tuple[str, float] | None:
    """(attribute, value) of the probability by which the frame's function skips a layer; None: there is none."""
    owner = frame.f_locals.get("self") if frame is not None else None
    path = next((name for name, m in model.named_modules() if m is owner), None)
    if frame is None or path is None:
        return None
    try:
        source = inspect.getsource(frame.f_code)
    except (OSError, TypeError):
        return None
    for found in _LEAVES_OUT.finditer(source):
        value: Any = owner
        for attribute in found[1].split(".")[1:]:
            value = getattr(value, attribute, None)
        if isinstance(value, int | float) and value > 0:
            return ".".join(["model", *([printable(path)] if path else [])]) + found[1], float(value)
    return None
