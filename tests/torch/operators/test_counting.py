"""A forward that asks about what it changes is refused by the line that asks; one that only counts is planned."""

from __future__ import annotations

import array
import collections
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every

X = torch.rand(8, 8)


class Count:
    n = 0


def helper() -> int:
    helper.n += 1  # type: ignore[attr-defined]
    return helper.n  # type: ignore[attr-defined, no-any-return]


helper.n = 0  # type: ignore[attr-defined]


class Model(nn.Module):
    """forward multiplies its result by what `factor` returns."""

    def __init__(self, factor: Callable[[Any], Any]):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.factor = factor
        self.n, self.rows, self.seen, self.table = 0, [], set(), {"n": 0, "scale": 2.0}  # type: ignore[var-annotated]
        self.queue, self.turns = [torch.ones(8) for _ in range(3)], collections.deque([1.0, 1.0, 2.0])
        self.pair, self.array, self.numbers = (1.0, 1.0, 2.0), array.array("d", [0]), np.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        self.h = y.detach().mean(0)
        return y * self.factor(self)


def counted(m: Any) -> int:
    m.n += 1
    return m.n  # type: ignore[no-any-return]


def rows(m: Any) -> int:
    m.rows.append(1)
    m.seen.add(len(m.seen))
    m.table["n"] += 1
    return len(m.rows)


def queued(m: Any) -> Any:
    m.queue.append(m.h)
    return m.queue.pop(0)


def turned(m: Any) -> Any:
    m.turns.rotate(1)
    m.turns.rotate(-2)
    return m.turns[0]


def in_a_pair(m: Any) -> Any:
    m.pair = (*m.pair[1:], m.pair[0])
    return m.pair[0]


def of_a_class() -> int:
    Count.n += 1
    return Count.n


def in_an_array(x: Any) -> Any:
    x[0] += 1
    return x[0]


def printed(m: Any) -> float:
    if counted(m) % 100 == 0 or rows(m) % 100 == 0:
        print(m.n, m.h.norm().item())
    assert m.n > 0
    if m.n == 1 or len(m.rows) > 50:
        m.rows.clear()
    return 1.0


# fmt: off
DEPEND: dict[str, Callable[[Any], Any]] = {
    "n": lambda m: 2 if counted(m) > 8 else 1,  # n
    "modulo": lambda m: 2 if counted(m) % 1000 == 0 else 1,  # modulo
    "least": lambda m: max(counted(m) - 4000, 1),  # least
    "length": lambda m: 2 if rows(m) > 8 else 1,  # length
    "set": lambda m: 2 if rows(m) and len(m.seen) > 8 else 1,  # set
    "entry": lambda m: 2 if rows(m) and m.table["n"] > 8 else 1,  # entry
    "class": lambda m: 2 if of_a_class() > 8 else 1,  # class
    "function": lambda m: 2 if helper() > 8 else 1,  # function
}
# fmt: on
QUEUES: dict[str, Callable[[Any], Any]] = {
    "queue": queued,
    "deque": turned,
    "tuple": in_a_pair,
    "array": lambda m: 2 if in_an_array(m.array) > 8 else 1,
    "numpy": lambda m: 2 if in_an_array(m.numbers) > 8 else 1,
}  # fmt: skip
COUNTS: dict[str, Callable[[Any], Any]] = {
    "number": lambda m: counted(m) * 0 + 1.0,
    "rows": lambda m: rows(m) * 0 + m.table["scale"],
    "printed": printed,
    "elsewhere": lambda m: (of_a_class() + helper()) * 0 + 1.0,
    "array": lambda m: float(in_an_array(m.array)) * 0 + 1.0,
}


def traced(model: nn.Module) -> rekindle.Trace:
    return rekindle.trace(model, X, progress=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", every(3, DEPEND))
def test_the_line_that_asks_is_named(kind: str) -> None:
    with pytest.raises(rekindle.TraceError, match="depends on .*, which forward changes itself") as error:
        traced(Model(DEPEND[kind]))
    with open(__file__) as lines:
        line = next(i for i, text in enumerate(lines, 1) if text.endswith(f"  # {kind}\n"))
    assert f"{__file__}:{line}," in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", QUEUES)
def test_what_is_read_with_a_delay_is_named(kind: str) -> None:
    name = {"deque": "turns", "tuple": "pair", "numpy": "numbers"}.get(kind, kind)
    with pytest.raises(rekindle.TraceError, match=f"depends on {name}, which forward changes itself"):
        traced(Model(QUEUES[kind]))


@pytest.mark.parametrize("kind", every(3, COUNTS))
def test_a_model_that_only_counts_is_planned(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(COUNTS[kind])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        traced(model)
    assert len([w for w in found if "planned steps do not" in str(w.message)]) == 1
    assert (model.n, model.rows, model.seen, model.table["n"], Count.n, helper.n) == (0, [], set(), 0, 0, 0)  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore")
def test_parts_of_such_a_model_are_planned() -> None:
    torch.manual_seed(0)
    model = Model(DEPEND["n"])
    rekindle.checkpoint(model, X, minimize="memory", solver="storages", time_limit=1, cost="flops", progress=False)
    plain = [float(model(X).sum().detach()) for _ in range(10)]
    assert plain[8:] == [2 * y for y in plain[:2]]
