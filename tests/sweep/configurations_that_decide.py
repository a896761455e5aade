"""Tiny models of transformers whose forward depends on its data: detection with matching losses, speech, images among words."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from configuration_tables import BATCH, IMAGE, VOCAB, Made, drawn, ids, labels, named
from configurations_of_transformers import _detection, hf, sequences, sound, text, transcribed

from rekindle.zoo.vision import import_library

HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
NO_BACKBONE_NAMED = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}


def backbone(*stages: str) -> Any:
    t: Any = import_library("transformers")
    return t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=list(stages))


# -- detection: each object is matched with the query that is nearest, on the CPU by scipy --------------------------------
def _queries(name: str, **extra: Any) -> Made:
    t: Any = import_library("transformers")
    config = getattr(t, f"{name}Config")(
        **NO_BACKBONE_NAMED,
        backbone_config=backbone("stage4"),
        num_queries=5,
        d_model=32,
        **LAYERS,
        **HEADS,
        num_labels=3,
        **extra,
    )
    return _detection(getattr(t, f"{name}ForObjectDetection")(config), IMAGE, True)


def _deformable() -> Made:
    t: Any = import_library("transformers")
    config = t.DeformableDetrConfig(
        **NO_BACKBONE_NAMED, backbone_config=backbone("stage2", "stage3", "stage4"), num_queries=5, d_model=32, **LAYERS,
        **HEADS, num_labels=3, num_feature_levels=3, encoder_n_points=2, decoder_n_points=2, disable_custom_kernels=True,
    )  # fmt: skip
    return _detection(t.DeformableDetrForObjectDetection(config), 64, True)


def _real_time(name: str, **extra: Any) -> Made:
    t: Any = import_library("transformers")
    stages = t.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = getattr(t, f"{name}Config")(
        backbone_config=stages, encoder_hidden_dim=32, encoder_in_channels=[8, 16, 16], encoder_ffn_dim=32,
        encoder_attention_heads=4, d_model=32, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=32, num_queries=5,
        decoder_layers=2, decoder_attention_heads=4, num_denoising=4, num_labels=3, **extra,
    )  # fmt: skip
    return _detection(getattr(t, f"{name}ForObjectDetection")(config), 64, True)


def _maskformer() -> Made:
    t: Any = import_library("transformers")
    stages = ["stage1", "stage2", "stage3", "stage4"]
    swin = t.MaskFormerSwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, out_features=stages
    )
    detr = t.DetrConfig(
        **NO_BACKBONE_NAMED,
        backbone_config=backbone("stage4"),
        num_queries=5,
        d_model=32,
        **LAYERS,
        **HEADS,
        num_labels=3,
    )
    config = t.MaskFormerConfig(
        fpn_feature_size=32, mask_feature_size=32, backbone_config=swin, decoder_config=detr, num_labels=3
    )

    def sample(seed: int) -> dict[str, Any]:
        masks = [(drawn(seed + i, 2, 64, 64) > 0.5).float() for i in range(BATCH)]
        kinds = [torch.tensor([0, 1]) for _ in range(BATCH)]
        return {"pixel_values": drawn(seed, BATCH, 3, 64, 64), "mask_labels": masks, "class_labels": kinds}

    return t.MaskFormerForInstanceSegmentation(config), sample


# -- speech: layers left out at random, frames counted by a mask, a prenet that drops always -----------------------------
def _speecht5() -> Made:
    t: Any = import_library("transformers")
    config = t.SpeechT5Config(
        vocab_size=VOCAB, hidden_size=32, **LAYERS, **HEADS, num_mel_bins=8, speech_decoder_prenet_units=16,
        speaker_embedding_dim=8, speech_decoder_postnet_units=16, max_text_positions=64, max_speech_positions=64,
        speech_decoder_postnet_layers=2, use_guided_attention_loss=False,
    )  # fmt: skip

    def sample(seed: int) -> dict[str, Any]:
        return {
            "input_ids": ids(seed),
            "labels": drawn(seed, BATCH, 8, 8),
            "speaker_embeddings": drawn(seed + 1, BATCH, 8),
        }

    return t.SpeechT5ForTextToSpeech(config), sample


def _features(auto: str, kind: str, size: int, **extra: Any) -> Made:
    model, _ = hf(auto, kind, text, **extra)
    return model, lambda seed: {"input_features": drawn(seed, BATCH, 24, size), "labels": labels(seed)}


SPEECH = {"conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_feat_extract_layers": 2,
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16, "mask_time_length": 2,
          "mask_feature_length": 2}  # fmt: skip


def _fastspeech() -> Made:
    t: Any = import_library("transformers")
    config = t.FastSpeech2ConformerConfig(
        hidden_size=32, vocab_size=VOCAB, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_num_attention_heads=2,
        decoder_num_attention_heads=2, encoder_linear_units=32, decoder_linear_units=32, speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=16, duration_predictor_layers=1, duration_predictor_channels=16,
        energy_predictor_channels=16, pitch_predictor_channels=16, pitch_predictor_layers=1, energy_predictor_layers=1,
    )  # fmt: skip

    def sample(seed: int) -> dict[str, Any]:
        words = ids(seed, 6)
        frames = torch.full((BATCH, 6), 2)
        return {
            "input_ids": words, "attention_mask": torch.ones_like(words), "duration_labels": frames,
            "spectrogram_labels": drawn(seed, BATCH, 12, 8), "pitch_labels": drawn(seed + 1, BATCH, 6, 1),
            "energy_labels": drawn(seed + 2, BATCH, 6, 1),
        }  # fmt: skip

    return t.FastSpeech2ConformerModel(config), sample


def _musicgen() -> Made:
    t: Any = import_library("transformers")
    config = t.MusicgenDecoderConfig(
        vocab_size=VOCAB, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4, layerdrop=0.1,
        hidden_size=32, num_codebooks=2, pad_token_id=VOCAB, bos_token_id=VOCAB,
    )  # fmt: skip
    model = t.MusicgenForCausalLM(config)
    return model, lambda seed: {
        "input_ids": ids(seed).repeat(2, 1),
        "labels": torch.stack([ids(seed), ids(seed + 1)], -1),
    }


# -- images among the words: the places are found by comparing ids -------------------------------------------------------
TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
EYES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": IMAGE,
    "patch_size": 16,
}


def _with_image(seed: int, places: int) -> dict[str, Any]:
    words = ids(seed, 16)
    words[:, 2 : 2 + places] = 3
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words,
            "pixel_values": drawn(seed, BATCH, 3, IMAGE, IMAGE)}  # fmt: skip


def _llava() -> Made:
    t: Any = import_library("transformers")
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**EYES),
        text_config=t.LlamaConfig(**TEXT),
        image_token_id=3,
        image_seq_length=4,
    )
    return t.LlavaForConditionalGeneration(config), lambda seed: _with_image(seed, 4)


def _paligemma() -> Made:
    t: Any = import_library("transformers")
    config = t.PaliGemmaConfig(
        vision_config=t.SiglipVisionConfig(**EYES), text_config=t.GemmaConfig(**TEXT, head_dim=8), image_token_id=3,
        projection_dim=32,
    )  # fmt: skip
    return (
        t.PaliGemmaForConditionalGeneration(config),
        lambda seed: (
            _with_image(seed, 4)
            | {"token_type_ids": torch.cat([torch.zeros(BATCH, 8), torch.ones(BATCH, 8)], 1).long()}
        ),
    )


def _qwen_vl() -> Made:
    t: Any = import_library("transformers")
    config = t.Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4},
        text_config=TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}},
        image_token_id=3, vision_start_token_id=2, vision_end_token_id=1, video_token_id=0,
    )  # fmt: skip

    def sample(seed: int) -> dict[str, Any]:
        given = _with_image(seed, 4)
        given["input_ids"][:, 1] = 2
        return given | {
            "pixel_values": drawn(seed, BATCH * 16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
            "mm_token_type_ids": (given["input_ids"] == 3).int(),
        }  # fmt: skip

    return t.Qwen2VLForConditionalGeneration(config), sample


def _tapas() -> Made:
    model, _ = hf("AutoModelForSequenceClassification", "tapas", text, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4])

    def sample(seed: int) -> dict[str, Any]:
        columns = torch.zeros(BATCH, 12, 7, dtype=torch.long)
        columns[:, 4:, 1], columns[:, 4:, 2] = torch.arange(8) % 3, torch.arange(8) // 3
        return sequences(seed) | {"token_type_ids": columns}

    return model, sample


def _layoutlmv3() -> Made:
    t: Any = import_library("transformers")
    sizes = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}
    config = t.LayoutLMv3Config(
        **sizes,
        max_2d_position_embeddings=64,
        coordinate_size=4,
        shape_size=8,
        input_size=IMAGE,
        patch_size=8,
        num_labels=3,
    )

    def sample(seed: int) -> dict[str, Any]:
        corner = ids(seed + 3) // 2
        boxes = torch.stack([corner, corner, corner + 5, corner + 7], -1)
        return text(seed) | {
            "bbox": boxes,
            "pixel_values": drawn(seed, BATCH, 3, IMAGE, IMAGE),
            "labels": ids(seed) % 3,
        }

    return t.LayoutLMv3ForTokenClassification(config), sample


for _name, _make in {
    "conditional_detr-loss": partial(_queries, "ConditionalDetr"),
    "table-transformer-loss": partial(_queries, "TableTransformer"),
    "dab-detr-loss": partial(_queries, "DabDetr"), "deformable_detr-loss": _deformable,
    "rt_detr-loss": partial(_real_time, "RTDetr"), "d_fine-loss": partial(_real_time, "DFine"),
    "maskformer-loss": _maskformer, "speecht5-spectrogram": _speecht5, "fastspeech2_conformer": _fastspeech,
    "musicgen-layerdrop": _musicgen, "llava": _llava, "paligemma": _paligemma, "qwen2_vl": _qwen_vl, "tapas-sequences": _tapas,
    "layoutlmv3-tokens": _layoutlmv3,
    "wav2vec2-conformer": partial(hf, "AutoModelForAudioClassification", "wav2vec2-conformer", sound, **SPEECH),
    "wav2vec2-conformer-ctc": partial(hf, "AutoModelForCTC", "wav2vec2-conformer", transcribed, **SPEECH),
    "wav2vec2-bert": partial(_features, "AutoModelForAudioClassification", "wav2vec2-bert", 16,
                             feature_projection_input_dim=16),
}.items():  # fmt: skip
    named(_name, _make)
