"""Models that cannot be captured whole, with 12 layers of width 128, and how to checkpoint each of their layers by hand.

Sizes are such that a step takes a second of one core, and the layers hold most of the bytes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from models_in_parts import Block, RoutedGPT, words

Made = tuple[nn.Module, Any]
WIDTH, LAYERS, HEADS, BATCH, LENGTH, VOCAB, IMAGE = 128, 12, 4, 4, 128, 500, 128
ENCODER_AND_DECODER = {
    "encoder_layers": LAYERS // 2, "decoder_layers": LAYERS // 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH, "d_model": WIDTH,
}  # fmt: skip
ENCODER = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH,
}  # fmt: skip
TEXT = {"vocab_size": VOCAB, "max_position_embeddings": LENGTH + 2}
DROPS = {"encoder_layerdrop": 0.1, "decoder_layerdrop": 0.1}
LAYERDROPS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


def _transformers() -> Any:
    import transformers

    return transformers


def _ids(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCAB, (BATCH, length))


def _text(kind: str, what: str, **options: Any) -> Made:
    t, ids = _transformers(), _ids()
    model = getattr(t, f"{kind}For{what}")(getattr(t, f"{kind}Config")(**options))
    labels = ids % 2 if what == "PreTraining" else ids
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def _pairs(kind: str, what: str = "ForConditionalGeneration", **options: Any) -> Made:
    t = _transformers()
    config = getattr(t, f"{kind}Config")(use_cache=False, decoder_start_token_id=1, **options)
    return getattr(t, f"{kind}{what}")(config), {"input_ids": _ids(), "labels": _ids(LENGTH // 2)}


def _sound(kind: str) -> Made:
    t = _transformers()
    config = getattr(t, f"{kind}Config")(
        **ENCODER, conv_dim=(32,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        classifier_proj_size=WIDTH, layerdrop=0.1, num_labels=3,
    )  # fmt: skip
    sample = {"input_values": torch.randn(BATCH, 32_000), "labels": torch.tensor([0, 1, 2, 0])}
    return getattr(t, f"{kind}ForSequenceClassification")(config), sample


def _informer() -> Made:
    t, history, ahead = _transformers(), 96, 24
    config = t.InformerConfig(
        prediction_length=ahead,
        context_length=history,
        lags_sequence=[1, 2],
        num_time_features=1,
        **ENCODER_AND_DECODER,
    )
    sample = {
        "past_values": torch.randn(BATCH, history + 2), "past_time_features": torch.randn(BATCH, history + 2, 1),
        "past_observed_mask": torch.ones(BATCH, history + 2), "future_values": torch.randn(BATCH, ahead),
        "future_time_features": torch.randn(BATCH, ahead, 1),
    }  # fmt: skip
    return t.InformerForPrediction(config), sample


def _images(labels: Any) -> Any:
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": labels}


def _boxes() -> list[dict[str, Tensor]]:
    return [{"class_labels": torch.tensor([0, 1]), "boxes": 0.1 + 0.4 * torch.rand(2, 4)} for _ in range(BATCH)]


def _detr() -> Made:
    t = _transformers()
    backbone = t.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    config = t.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, num_queries=50,
        num_labels=3, **ENCODER_AND_DECODER,
    )  # fmt: skip
    return t.DetrForObjectDetection(config), _images(_boxes())


def _yolos() -> Made:
    t = _transformers()
    config = t.YolosConfig(
        **ENCODER, image_size=[IMAGE, IMAGE], patch_size=8, num_detection_tokens=20, num_labels=3,
    )  # fmt: skip
    return t.YolosForObjectDetection(config), _images(_boxes())


def _mask2former() -> Made:
    t = _transformers()
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = t.SwinConfig(
        image_size=IMAGE, embed_dim=16, depths=[1, 1, 2, 1], num_heads=[1, 1, 2, 2], window_size=4, out_features=stages
    )
    config = t.Mask2FormerConfig(
        backbone_config=backbone, feature_size=WIDTH, mask_feature_size=WIDTH, hidden_dim=WIDTH, num_queries=20,
        encoder_feedforward_dim=4 * WIDTH, encoder_layers=LAYERS // 2, decoder_layers=LAYERS // 2 + 1, num_labels=3,
        num_attention_heads=HEADS, dim_feedforward=4 * WIDTH, train_num_points=256,
    )  # fmt: skip
    sample = {
        "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE),
        "mask_labels": [(torch.rand(2, IMAGE, IMAGE) > 0.5).float() for _ in range(BATCH)],
        "class_labels": [torch.tensor([0, 1]) for _ in range(BATCH)],
    }
    return t.Mask2FormerForUniversalSegmentation(config), sample


def _switch() -> Made:
    return _pairs(
        "SwitchTransformers", vocab_size=VOCAB, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=4 * WIDTH, num_experts=4,
        num_layers=LAYERS // 2, num_decoder_layers=LAYERS // 2, num_heads=HEADS, num_sparse_encoder_layers=3,
        num_sparse_decoder_layers=3, pad_token_id=0,
    )  # fmt: skip


MODELS: dict[str, Callable[[], Made]] = {
    "wav2vec2": partial(_sound, "Wav2Vec2"),
    "hubert": partial(_sound, "Hubert"),
    "informer": _informer,
    "m2m100": partial(_pairs, "M2M100", **TEXT, **ENCODER_AND_DECODER, **DROPS),
    "opt": partial(
        _text, "OPT", "CausalLM", **TEXT, hidden_size=WIDTH, word_embed_proj_dim=WIDTH, ffn_dim=4 * WIDTH,
        num_attention_heads=HEADS, num_hidden_layers=LAYERS, layerdrop=0.1, use_cache=False,
    ),
    "bart": partial(_pairs, "Bart", **TEXT, **ENCODER_AND_DECODER, **DROPS),
    "longformer": partial(_text, "Longformer", "MaskedLM", **TEXT, **ENCODER, attention_window=32, pad_token_id=1),
    "led": partial(
        _pairs, "LED", **ENCODER_AND_DECODER, vocab_size=VOCAB, attention_window=32,
        max_encoder_position_embeddings=LENGTH, max_decoder_position_embeddings=LENGTH,
    ),
    "detr": _detr,
    "mask2former": _mask2former,
    "yolos": _yolos,
    "switch": _switch,
    "electra": partial(_text, "Electra", "PreTraining", **TEXT, **ENCODER, embedding_size=WIDTH),
    "xmod": partial(
        _text, "Xmod", "MaskedLM", **TEXT, **ENCODER, languages=["en_XX", "de_DE"], default_language="en_XX", pad_token_id=1
    ),
    "routed": lambda: (RoutedGPT(LAYERS, WIDTH), (words(BATCH, LENGTH),)),
}  # fmt: skip


def made(name: str) -> Made:
    """The model in train mode and its sample, the same each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        model, sample = MODELS[name]()
    return model.train(), sample


def run_every_layer(model: nn.Module) -> None:
    """Let no layer be left out from now on (LayerDrop)."""
    for holder in [*model.modules(), getattr(model, "config", None)]:
        for name in LAYERDROPS:
            if isinstance(getattr(holder, name, None), float):
                setattr(holder, name, 0.0)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers that `gradient_checkpointing_enable` of transformers checkpoints, where the model supports it."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer | Block)]


def checkpoint_layers(model: nn.Module) -> None:
    """Let each layer of the model save its inputs alone and run again in backward, by torch.utils.checkpoint."""
    for layer in layers_of(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
