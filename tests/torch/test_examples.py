"""The examples run, from their own main, with small arguments."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rekindle
from libraries import needs_torchvision
from marks import sweep

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cifar_folder(tmp_path, monkeypatch):
    """Random pictures in the files of the real data set; only their checksums differ."""
    needs_torchvision()
    from torchvision.datasets import cifar

    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(1, 6):
        batch = {
            "data": random.integers(0, 256, (4, 3072), dtype=np.uint8),
            "labels": random.integers(10, size=4).tolist(),
        }
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    return tmp_path


def test_graph_by_hand(capsys):
    example("graph_by_hand").main(["--budget", "0.5"])
    out = capsys.readouterr().out
    assert "fits:" in out
    assert "boundary" in out
    assert "(again)" in out


def test_graph_by_hand_imports_no_torch():
    subprocess.run(
        [sys.executable, EXAMPLES / "graph_by_hand.py", "--budget", "350MiB"], check=True, capture_output=True
    )


@pytest.fixture(params=["storages", pytest.param("auto", marks=sweep)])
def solver(request, monkeypatch):
    """The examples ask for no solver by name: the portfolio takes half a minute."""
    monkeypatch.setattr(rekindle, "plan", functools.partial(rekindle.plan, solver=request.param))


@pytest.mark.usefixtures("solver")
def test_cifar10_on_synthetic_images(capsys):
    losses = example("cifar10").main(["--steps", "6", "--batch", "16", "--budget", "0.6", "--device", "cpu"])
    out = capsys.readouterr().out
    assert "synthetic" in out
    assert "fits:" in out
    assert len(losses) == 6
    assert losses[-1] < losses[0]


@sweep
@pytest.mark.usefixtures("solver")
def test_cifar10_on_the_real_format(cifar_folder, capsys):
    args = ["--data", str(cifar_folder), "--steps", "2", "--batch", "8", "--budget", "0.6", "--device", "cpu"]
    losses = example("cifar10").main(args)
    assert "synthetic" not in capsys.readouterr().out
    assert len(losses) == 2
