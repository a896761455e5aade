"""The zoo: every name loads, the published models are the published ones, and loading is repeatable."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import weakref

import more_models
import pytest
import torch
from small_copies import small
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rekindle.zoo as zoo
from libraries import needs_torchvision
from marks import every, few
from rekindle.errors import RekindleError, UsageError
from rekindle.zoo import seeds

LIBRARIES = {*zoo._FILES["vision"], *(n for file in ("deep", "language", "images") for n in more_models.FILES[file])}
CELLS = zoo._FILES["cells"]
SMALL_CELLS = {"cells": 3, "channels": 4}

# what keeps a real step of each model well under a second
SMALL = {
    "resnet18": {"image": 64},
    "nasnet_cifar10": SMALL_CELLS,
    "amoebanet_cifar10": SMALL_CELLS,
    "darts_cifar10": SMALL_CELLS,
    "gpt": {"d": 32, "length": 16, "vocab": 50},
    "gpt2": {"n_layer": 1, "d": 32, "heads": 2, "length": 16, "vocab": 50},
    "gpt_blocks": {"d": 32, "length": 16},
    "unet": {"image": 32, "width": 4, "depth": 2},
    "lstm_unrolled": {"length": 8},
    "lstm": {"length": 8},
}

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "densenet121": 7_978_856,
    "inception_v3": 23_834_568,
    "darts_cifar10": 3_349_342,
    "nasnet_cifar10": 3_830_950,
    "amoebanet_cifar10": 3_145_078,
    "gpt2": 124_439_808,
    "gpt2_small": 124_439_808,
    "gpt2_medium": 354_823_168,
    "llama_1b": 1_235_814_400,
    "llama_7b": 6_738_415_616,
    "t5_base": 222_903_552,
    "vit_b16": 86_567_656,
    "swin_b": 87_768_224,
    "convnext_b": 88_591_464,
    "efficientnet_b4": 19_341_616,
    "mobilenet_v3": 5_483_032,
}


def load(name, *args, **options):
    if name in LIBRARIES:
        needs_torchvision()
    return more_models.load(name, *args, **options)


def call(model, sample):
    """A scalar to run backward from."""
    out = model(**sample) if isinstance(sample, dict) else model(sample)
    return out["loss"] if isinstance(out, dict) else out.sum()


class LiveBytes(TorchDispatchMode):
    """Peak bytes of the storages that ops create, those of `known` tensors left out."""

    def __init__(self, known):
        super().__init__()
        self.known = [t.untyped_storage() for t in known]
        self.seen = {id(s) for s in self.known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and id(t.untyped_storage()) not in self.seen:
                s = t.untyped_storage()
                self.seen.add(id(s))
                self.now += s.nbytes()
                weakref.finalize(s, self.end, id(s), s.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def end(self, key, size):
        self.seen.discard(key)
        self.now -= size


def plain_peak(name, **options):
    """MB under the published protocol, on fake tensors."""
    model, sample = load(name, fake=True, **options)
    with sample.fake_mode:
        call(model, sample).backward()
        gc.collect()
        held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
        with LiveBytes(held) as live:
            call(model, torch.rand(sample.shape, requires_grad=True)).backward()
    return live.peak / 2**20


def test_names_are_those_of_the_files():
    for file, family in zoo._FILES.items():
        assert tuple(importlib.import_module(f"rekindle.zoo.{file}").MODELS) == family
    for file, family in more_models.FILES.items():
        assert tuple(importlib.import_module(f"more_models.{file}").MODELS) == family
    assert len(set(more_models.names())) == len(more_models.names())


def test_suites_are_of_models_that_exist():
    assert set(zoo.SUITES["seeds"]) == {r.model for r in seeds.ROWS}
    assert {name for suite in more_models.SUITES.values() for name in suite} <= set(more_models.names())
    with pytest.raises(UsageError, match=r"alexnet.*gpt2_small"):
        small("alexnet")


def test_listing_names_imports_no_torch():
    code = "import sys; from rekindle.zoo import names, seeds; names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", every(3, more_models.names()))
def test_loads_on_fake_tensors(name):
    model, sample = load(name, batch=2, fake=True)
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves(sample)]
    assert all(isinstance(t, FakeTensor) for t in tensors)
    assert len({id(t.fake_mode) for t in tensors}) == 1
    assert model.training
    if name in PARAMETERS:
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    if name in {r.model for r in seeds.ROWS}:
        assert sample.shape == (2, 3, seeds.row(name).image, seeds.row(name).image)
        assert sample.requires_grad


@pytest.mark.parametrize("name", ["alexnet", "gpt", "unet", "lstm"])
def test_steps_on_fake_tensors(name):
    with FakeTensorMode():
        model, sample = load(name, batch=2)
        call(model, sample).backward()
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_steps_on_real_tensors(name):
    model, sample = load(name, batch=2, **SMALL[name])
    call(model, sample).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert all(len(t) == 2 for t in tree_leaves(sample))


@pytest.mark.parametrize("name", few(["alexnet", "resnet34", "inception_v3", *CELLS], ["alexnet", "resnet34"]))
def test_plain_peak_is_the_measured_one(name):
    assert plain_peak(name) == pytest.approx(seeds.row(name).measured_regular_mb, abs=0.1)


def test_plain_peak_of_the_blocks():
    assert plain_peak("gpt_blocks") == pytest.approx(77, abs=2)


def test_same_seed_same_tensors():
    def tensors(seed):
        model, sample = load("unet", batch=1, image=16, width=4, depth=1, seed=seed)
        return [*model.state_dict().values(), sample]

    assert all(torch.equal(a, b) for a, b in zip(tensors(0), tensors(0), strict=True))
    assert not torch.equal(tensors(0)[-1], tensors(1)[-1])


@pytest.mark.parametrize("fake", [False, True])
def test_global_random_state_is_left_alone(fake):
    before = torch.get_rng_state()
    load("lstm", batch=1, fake=fake)
    assert torch.equal(torch.get_rng_state(), before)


def test_options():
    model, sample = load("alexnet", batch=1, dropout=0.3, input_grad=False, image=96, train=False)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}
    assert not sample.requires_grad
    assert sample.shape == (1, 3, 96, 96)
    assert not model.training
    assert {m.p for m in load("vgg11", batch=1, fake=True)[0].modules() if isinstance(m, torch.nn.Dropout)} == {0.0}


def test_gpt_ties_its_head_and_gives_a_dict():
    model, sample = load("gpt", batch=2, **SMALL["gpt"])
    assert model.head.weight is model.token.weight
    out = model(**sample)
    assert out["loss"].shape == ()
    assert out["logits"].shape == (2, 16, 50)
    assert set(model(sample["input_ids"])) == {"logits"}


def test_eager_attention_is_scaled_dot_product_attention():
    from more_models.gpt_blocks import Attention, EagerAttention

    plain, eager = Attention(16, 2, 0.0), EagerAttention(16, 2, 8, 0.0)
    eager.load_state_dict(plain.state_dict())
    x = torch.randn(2, 8, 16)
    torch.testing.assert_close(eager(x), plain(x))


def test_unrolled_lstm_is_an_lstm():
    from more_models.recurrent import Cell

    cell, reference = Cell(5, 7), torch.nn.LSTMCell(5, 7)
    order = [0, 1, 3, 2]  # ours has the output gate before the candidate

    def reorder(t):
        return torch.cat([t.chunk(4)[i] for i in order])

    with torch.no_grad():
        cell.of_input.weight.copy_(reorder(reference.weight_ih))
        cell.of_input.bias.copy_(reorder(reference.bias_ih + reference.bias_hh))
        cell.of_state.weight.copy_(reorder(reference.weight_hh))
    x, h, c = torch.randn(3, 5), torch.randn(3, 7), torch.randn(3, 7)
    torch.testing.assert_close(cell(x, h, c), reference(x, (h, c)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zoo.load("resnet51"), "resnet51.*resnet50"),
        (lambda: zoo.load("unet", 0), "batch=0"),
        (lambda: zoo.load("unet", True), "batch=True"),
        (lambda: zoo.load("unet", colour=3), "colour.*image, width"),
        (lambda: zoo.load("resnet18", dropout=0.1), "dropout"),
        (lambda: zoo.load("unet", image=100), "multiple of 16"),
        (lambda: more_models.load("resnet1000", layers=12), "layers=12.*13"),
        (lambda: more_models.load("mamba", length=100), "length=100.*chunk=256"),
        (lambda: more_models.load("dit", image=31), "image=31.*patch=2"),
        (lambda: seeds.row("unet"), "unet"),
    ],
)
def test_bad_usage_says_what_is_valid(call, message):
    with pytest.raises(UsageError, match=f"(?s){message}"):
        call()


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RekindleError, match="'timm'.*pip install --no-deps timm"):
        load("vit_b16", 1, fake=True)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(RekindleError, match="pip install --no-deps torchvision"):
        zoo.load("resnet18", 1, fake=True)


@pytest.mark.parametrize("name", ["resnet18", "vit_b16", "gpt2_small"])
def test_a_torchvision_compiled_for_another_torch_is_named(name, tmp_path, monkeypatch):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    info = tmp_path / "torchvision-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1.2\n")
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.syspath_prepend(tmp_path)
    message = "torchvision 0.1.2 is installed.*torchvision::nms.*compiled for another torch.*pip install --no-deps"
    with pytest.raises(RekindleError, match=message):
        more_models.load(name, 1, fake=True)


def test_published_rows():
    assert len(seeds.ROWS) == 18
    assert seeds.published() == seeds.ROWS
    r = seeds.row("resnet50")
    assert (r.batch, r.image, r.regular_mb, r.ogc_mb) == (64, 224, 5323, 1973)
    assert r.measured_ogc_nonreentrant_mb == 1972.3
    assert seeds.row("densenet201").measured_regular_mb is None
    assert "requires_grad" in seeds.PROTOCOL
