"""The models whose compiled steps are measured. Each has its loss in forward and draws no random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]  # the model and its keyword arguments


def gpt2(device: str, small: bool) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, batch, length, words = (6, 256, 4, 256, 4096) if small else (12, 768, 8, 1024, 50257)
    how = GPT2Config(
        vocab_size=words, n_layer=layers, n_embd=width, n_head=width // 64, n_positions=length, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(how).to(device), _text(words, batch, length, device)


def llama(device: str, small: bool) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, batch, length, words = (6, 256, 4, 256, 4096) if small else (16, 2048, 4, 2048, 32000)
    how = LlamaConfig(
        vocab_size=words, num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 8 // 3 // 64 * 64,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, max_position_embeddings=length, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(how).to(device)
    return (model if small else model.bfloat16()), _text(words, batch, length, device)


def t5(device: str, small: bool) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    layers, width, batch, length, words = (4, 256, 4, 192, 4096) if small else (6, 512, 16, 512, 32128)
    how = T5Config(
        vocab_size=words, num_layers=layers, num_decoder_layers=layers, d_model=width, d_kv=64, d_ff=4 * width,
        num_heads=width // 64, dropout_rate=0.0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    given = _text(words, batch, length, device)
    del given["attention_mask"]
    return T5ForConditionalGeneration(how).to(device), given


class WithLoss(nn.Module):
    """A network with its loss. loss : of the network's result and the target."""

    def __init__(self, net: nn.Module, loss: nn.Module):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(x), target)  # type: ignore[no-any-return]


def vit(device: str, small: bool) -> Made:
    import timm

    name, batch, size = ("vit_tiny_patch16_224", 8, 128) if small else ("vit_base_patch16_224", 128, 224)
    net = timm.create_model(name, img_size=size)
    return WithLoss(net, nn.CrossEntropyLoss()).to(device), _images(batch, size, device)


def resnet(device: str, small: bool) -> Made:
    import torchvision

    name, batch, size = ("resnet18", 8, 96) if small else ("resnet50", 64, 224)
    return WithLoss(getattr(torchvision.models, name)(), nn.CrossEntropyLoss()).to(device), _images(batch, size, device)


def convnext(device: str, small: bool) -> Made:
    import timm

    name, batch, size = ("convnext_atto", 8, 96) if small else ("convnext_base", 64, 224)
    return WithLoss(timm.create_model(name), nn.CrossEntropyLoss()).to(device), _images(batch, size, device)


class Twice(nn.Sequential):
    """Two convolutions with their norms, as in a U-Net."""

    def __init__(self, before: int, after: int):
        layers: list[nn.Module] = []
        for n in (before, after):
            layers += [nn.Conv2d(n, after, 3, padding=1, bias=False), nn.GroupNorm(8, after), nn.SiLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """A U-Net whose levels hand their results across."""

    def __init__(self, width: int, depth: int = 4):
        super().__init__()
        sizes = [width * 2**i for i in range(depth)]
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(Twice(a + b, b) for a, b in zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        across: list[torch.Tensor] = []
        for block in self.down:
            x = block(nn.functional.max_pool2d(x, 2) if across else x)
            across.append(x)
        for block, beside in zip(self.up, across[-2::-1], strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), beside], 1))
        return self.last(x)  # type: ignore[no-any-return]


def unet(device: str, small: bool) -> Made:
    batch, size, width = (4, 96, 16) if small else (16, 256, 64)
    x = torch.randn(batch, 3, size, size, device=device)
    return WithLoss(UNet(width), nn.MSELoss()).to(device), {"x": x, "target": torch.randn_like(x)}


def _text(words: int, batch: int, length: int, device: str) -> dict[str, Any]:
    ids = torch.randint(4, words, (batch, length), device=device)
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def _images(batch: int, size: int, device: str) -> dict[str, Any]:
    x = torch.randn(batch, 3, size, size, device=device)
    return {"x": x, "target": torch.randint(0, 1000, (batch,), device=device)}


MODELS: dict[str, Callable[[str, bool], Made]] = {
    "gpt2": gpt2, "llama": llama, "vit": vit, "resnet": resnet, "convnext": convnext, "unet": unet, "t5": t5,
}  # fmt: skip
