"""The examples run, from their own main, with small arguments."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rekindle
from libraries import needs_torchvision
from marks import few, sweep
from scripts import printed_by

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem not in ("cifar10", "graph_by_hand"))
SHORT_MOST_LINES = 40
UNDER_TORCHRUN = ("ddp", "fsdp2")
COMPILED = ("compiled_fsdp2",)
NEEDS = {  # packages that an example imports and that not every machine has
    "dpo_loop": ["transformers"], "hf_accelerate": ["accelerate"], "hf_trainer": ["accelerate", "transformers"],
    "lightning_callback": ["lightning"], "peft_lora": ["peft", "transformers"],
}  # fmt: skip
TESTED_HERE_ALONE = ("dpo_loop", "raw_loop")


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


@pytest.mark.parametrize("name", SHORT)
def test_a_short_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= SHORT_MOST_LINES


@pytest.mark.parametrize("name", few([x for x in SHORT if x not in COMPILED], TESTED_HERE_ALONE))
def test_a_short_example_trains_as_its_plain_twin(name, tmp_path, monkeypatch):
    """Each compares its weights with those of a plain run, and says how many of its steps ran by a plan: all of them."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    processes = 2 if name in UNDER_TORCHRUN else 1
    said = printed_by(EXAMPLES / f"{name}.py", processes=processes)
    assert said.count("weights equal the plain run's, bit for bit: True") == processes, said
    used = [(ran, of) for ran, of in re.findall(r"steps by (?:a|the) plans?: ([\d, \[\]]+) of (\d)", said)]
    assert len(used) == processes
    assert all(set(re.findall(r"\d+", ran)) == {of} for ran, of in used), used


@sweep
def test_the_compiled_example_trains_as_its_plain_twin():
    said = printed_by(EXAMPLES / "compiled_fsdp2.py", processes=2)
    assert said.count("weights equal the uncompiled run's, to rounding: True") == 2, said


def test_each_short_example_has_its_place_in_the_docs():
    page = (EXAMPLES.parent / "docs" / "integrations.md").read_text()
    assert [name for name in SHORT if f"(examples.md#{name})" not in page] == []
