"""Tiny models of transformers, from configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from configuration_tables import BATCH, IMAGE, NOT_GIVEN, SMALL, VOCAB, Made, drawn, ids, labels, named, words
from torch import Tensor

from rekindle.zoo.vision import import_library


def hf(auto: str, kind: str, sample: Callable[[int], Any], **extra: Any) -> Made:
    t: Any = import_library("transformers")
    config_class = t.CONFIG_MAPPING[kind]
    default = config_class()
    given = {k: v for k, v in SMALL.items() if hasattr(default, k)}
    config = config_class(**{k: v for k, v in (given | extra).items() if v is not NOT_GIVEN})
    if auto == "AutoModelForSeq2SeqLM" and not hasattr(config, "decoder_start_token_id"):
        config.decoder_start_token_id = 1
    return getattr(t, auto).from_config(config), sample


def text(seed: int) -> dict[str, Tensor]:
    x = ids(seed)
    return {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x}


def text_without_mask(seed: int) -> dict[str, Tensor]:
    x = ids(seed)
    return {"input_ids": x, "labels": x}


def pairs(seed: int) -> dict[str, Tensor]:
    return {"input_ids": ids(seed), "labels": ids(seed + 50, 8)}


def images(seed: int) -> dict[str, Tensor]:
    return {"pixel_values": drawn(seed, BATCH, 3, IMAGE, IMAGE), "labels": labels(seed)}


def only_images(seed: int) -> dict[str, Tensor]:
    return {"pixel_values": drawn(seed, BATCH, 3, IMAGE, IMAGE)}


def sound(seed: int) -> dict[str, Tensor]:
    return {"input_values": drawn(seed, BATCH, 800), "labels": labels(seed)}


CAUSAL = words("""
afmoe apertus arcee bamba biogpt bitnet bloom codegen cohere cohere2 ctrl deepseek_v2 deepseek_v3 diffllama doge dots1
ernie4_5 ernie4_5_moe exaone4 falcon falcon_h1 falcon_mamba flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe
gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoehybrid granitemoeshared
helium hunyuan_v1_dense hunyuan_v1_moe jamba jetmoe lfm2 mamba mamba2 minimax ministral mistral modernbert-decoder mpt
nanochat nemotron olmo olmo2 olmo3 olmoe openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe
qwen3_next recurrent_gemma rwkv seed_oss smollm3 stablelm starcoder2 vaultgemma xglm youtu
""")


MASKED = words("""
albert bert-generation convbert deberta deberta-v2 distilbert electra ernie esm eurobert flaubert fnet funnel ibert
layoutlm longformer megatron-bert mobilebert modernbert mpnet mra nystromformer rembert roberta roberta-prelayernorm
roc_bert roformer squeezebert xlm yoso big_bird camembert
""")


SEQ2SEQ = words("""
bart blenderbot blenderbot-small led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet
switch_transformers t5gemma umt5 bigbird_pegasus
""")


VISION = words("""
beit bit convnext convnextv2 data2vec-vision dinov2 dinov2_with_registers focalnet hgnet_v2 hiera ijepa mobilenet_v1
mobilenet_v2 mobilevit poolformer pp_lcnet pvt pvt_v2 regnet resnet segformer swiftformer swin swinv2 textnet vit_msn
""")


AUDIO = words("""
audio-spectrogram-transformer data2vec-audio hubert sew sew-d unispeech unispeech-sat wav2vec2 wavlm
""")


# T5Gemma's sizes stand in the configurations of its encoder and its decoder: left as they are, the model takes 20 GB and more
T5GEMMA_HALF = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8,
                "max_position_embeddings": 64, "sliding_window": 8}  # fmt: skip
NO_HEADS = dict.fromkeys(["num_attention_heads", "num_hidden_layers", "hidden_size"], NOT_GIVEN)
EXTRA: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "youtu": {"num_key_value_heads": 4},
    "dots1": {"n_shared_experts": 1},
    "falcon": {"head_dim": NOT_GIVEN},
    "falcon_h1": {"mamba_d_ssm": 64},
    "mamba2": {"num_heads": 8, "expand": 2, "n_groups": 1},
    "longt5": {"local_radius": 4, "global_block_size": 4},
    "roc_bert": {"pronunciation_vocab_size": 8, "shape_vocab_size": 8},
    "albert": {"embedding_size": 16},
    "funnel": {"num_hidden_layers": NOT_GIVEN, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_head": 8, "d_inner": 64},
    "longformer": {"attention_window": 4},
    "led": {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    "mobilebert": {"true_hidden_size": 16, "intra_bottleneck_size": 16, "embedding_size": 16},
    "modernbert": {"local_attention": 4},
    "bloom": {"slow_but_exact": False},
    "codegen": {"rotary_dim": 4},
    "xlm": {"max_position_embeddings": 64},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "use_mamba_kernels": False},
    "convnext": {"num_hidden_layers": NOT_GIVEN, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "patch_size": 4},
    "convnextv2": {"num_hidden_layers": NOT_GIVEN, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "patch_size": 4},
    "bit": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "embedding_size": 8, "num_groups": 2},
    "resnet": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "embedding_size": 8},
    "regnet": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "embedding_size": 8, "groups_width": 4},
    "swin": {**NO_HEADS, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "swinv2": {**NO_HEADS, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "focalnet": {"embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "patch_size": 4,
                 "hidden_sizes": [16, 32]},
    "hiera": {"embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "image_size": [32, 32], "patch_size": [7, 7],
              "masked_unit_size": [4, 4], "query_stride": [2, 2], "num_query_pool": 2},
    "segformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4],
                  "patch_sizes": [7, 3, 3, 3]},
    "pvt": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "patch_size": 4,
            "patch_sizes": [4, 2, 2, 2]},
    "pvt_v2": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "patch_size": 4,
               "patch_sizes": [7, 3, 3, 3]},
    "poolformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "patch_size": 7},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevit": {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "patch_size": 2},
    "hgnet_v2": {"stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 16, 32], "stage_mid_channels": [8, 8, 8, 8],
                 "stage_out_channels": [16, 16, 32, 32], "stage_num_blocks": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32],
                 "depths": [1, 1, 1, 1], "embedding_size": 8},
    "swiftformer": {"embed_dims": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "textnet": {"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 16, 32]},
    "prophetnet": {"num_hidden_layers": NOT_GIVEN, "num_encoder_layers": 2, "num_decoder_layers": 2,
                   "num_encoder_attention_heads": 4,
                   "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    "nllb-moe": {"num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "t5gemma": {"encoder": dict(T5GEMMA_HALF), "decoder": dict(T5GEMMA_HALF)},
}  # fmt: skip


SPEECH = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
          "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16, "mask_time_prob": 0.0,
          "tdnn_dim": (16, 16), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1), "xvector_output_dim": 16, "codevector_dim": 16,
          "proj_codevector_dim": 16, "layerdrop": 0.0, "squeeze_factor": 2}  # fmt: skip


for _kind in CAUSAL:
    named(_kind, partial(hf, "AutoModelForCausalLM", _kind, text, **EXTRA.get(_kind, {})))


for _kind in MASKED:
    _sample = text_without_mask if _kind == "fnet" else text
    _auto = "AutoModelForCausalLM" if _kind == "bert-generation" else "AutoModelForMaskedLM"
    named(_kind, partial(hf, _auto, _kind, _sample, **EXTRA.get(_kind, {})))


for _kind in SEQ2SEQ:
    named(_kind, partial(hf, "AutoModelForSeq2SeqLM", _kind, pairs, **EXTRA.get(_kind, {})))


for _kind in VISION:
    _extra = EXTRA.get(_kind, {})
    named(f"{_kind}-images", partial(hf, "AutoModelForImageClassification", _kind, images, **_extra))


for _kind in AUDIO[1:]:
    named(_kind, partial(hf, "AutoModelForAudioClassification", _kind, sound, **SPEECH))


def _spectrogram() -> Made:
    made = hf("AutoModelForAudioClassification", "audio-spectrogram-transformer", sound, num_mel_bins=16, max_length=24,
              frequency_stride=4, time_stride=4)  # fmt: skip
    return made[0], lambda seed: {"input_values": drawn(seed, BATCH, 24, 16), "labels": labels(seed)}


named("audio-spectrogram-transformer", _spectrogram)


def _whisper() -> Made:
    model, _ = hf(
        "AutoModelForSpeechSeq2Seq", "whisper", text, num_mel_bins=8, max_source_positions=16, max_target_positions=32
    )
    return model, lambda seed: {"input_features": drawn(seed, BATCH, 8, 32), "labels": ids(seed, 8)}


def _speech_to_text() -> Made:
    model, _ = hf("AutoModelForSpeechSeq2Seq", "speech_to_text", text, input_feat_per_channel=8, conv_channels=16,
                  max_source_positions=64, max_target_positions=32)  # fmt: skip
    return model, lambda seed: {"input_features": drawn(seed, BATCH, 32, 8), "labels": ids(seed, 8)}


def _clip() -> Made:
    t: Any = import_library("transformers")
    small = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "projection_dim": 16,
    }
    words = small | {"vocab_size": VOCAB, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1}
    looks = small | {"image_size": IMAGE, "patch_size": 8}
    model = t.CLIPModel(t.CLIPConfig(text_config=words, vision_config=looks, projection_dim=16))
    return model, lambda seed: {"input_ids": ids(seed), **only_images(seed), "return_loss": True}


def _videomae() -> Made:
    model, _ = hf("AutoModelForVideoClassification", "videomae", text, num_frames=4, tubelet_size=2)
    return model, lambda seed: {"pixel_values": drawn(seed, BATCH, 4, 3, IMAGE, IMAGE), "labels": labels(seed)}


def _timesformer() -> Made:
    model, _ = hf("AutoModelForVideoClassification", "timesformer", text, num_frames=2)
    return model, lambda seed: {"pixel_values": drawn(seed, BATCH, 2, 3, IMAGE, IMAGE), "labels": labels(seed)}


def _vitmae() -> Made:
    t: Any = import_library("transformers")
    small = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": IMAGE,
    }
    config = t.ViTMAEConfig(**small, patch_size=8, decoder_hidden_size=32, decoder_num_hidden_layers=1,
                            decoder_num_attention_heads=4, decoder_intermediate_size=64)  # fmt: skip
    return t.ViTMAEForPreTraining(config), only_images


def _patchtst() -> Made:
    t: Any = import_library("transformers")
    config = t.PatchTSTConfig(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, d_model=32, ffn_dim=64,
                              num_hidden_layers=2, num_attention_heads=4, prediction_length=8)  # fmt: skip
    return t.PatchTSTForPrediction(config), lambda s: {
        "past_values": drawn(s, BATCH, 16, 2),
        "future_values": drawn(s + 9, BATCH, 8, 2),
    }


def _patchtsmixer() -> Made:
    t: Any = import_library("transformers")
    config = t.PatchTSMixerConfig(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, d_model=16,
                                  num_layers=2, prediction_length=8)  # fmt: skip
    return t.PatchTSMixerForPrediction(config), lambda s: {
        "past_values": drawn(s, BATCH, 16, 2),
        "future_values": drawn(s + 9, BATCH, 8, 2),
    }


def _time_series(name: str) -> Made:
    t: Any = import_library("transformers")
    config = getattr(t, f"{name}Config")(
        prediction_length=6, context_length=16, lags_sequence=[1, 2], num_time_features=1, d_model=16, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        **({"label_length": 4, "moving_average": 5} if name == "Autoformer" else {}),
    )  # fmt: skip

    def sample(s: int) -> dict[str, Tensor]:
        return {
            "past_values": drawn(s, BATCH, 18), "past_time_features": drawn(s + 1, BATCH, 18, 1),
            "past_observed_mask": torch.ones(BATCH, 18), "future_values": drawn(s + 2, BATCH, 6),
            "future_time_features": drawn(s + 3, BATCH, 6, 1),
        }  # fmt: skip

    return getattr(t, f"{name}ForPrediction")(config), sample


def _decision() -> Made:
    t: Any = import_library("transformers")
    config = t.DecisionTransformerConfig(
        state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=2, max_ep_len=32, n_positions=64
    )

    def sample(s: int) -> dict[str, Tensor]:
        return {
            "states": drawn(s, BATCH, 6, 5), "actions": drawn(s + 1, BATCH, 6, 3), "rewards": drawn(s + 2, BATCH, 6, 1),
            "returns_to_go": drawn(s + 3, BATCH, 6, 1), "timesteps": torch.arange(6).repeat(BATCH, 1),
            "attention_mask": torch.ones(BATCH, 6),
        }  # fmt: skip

    return t.DecisionTransformerModel(config), sample


def _questions(kind: str, **extra: Any) -> Made:
    model, _ = hf("AutoModelForQuestionAnswering", kind, text, num_labels=2, **extra)
    return model, lambda s: {
        "input_ids": ids(s),
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([3, 5]),
    }


def _canine() -> Made:
    model, _ = hf("AutoModelForQuestionAnswering", "canine", text, local_transformer_stride=8, downsampling_rate=4,
                  num_hash_buckets=64, max_position_embeddings=64, num_labels=2)  # fmt: skip
    return model, lambda s: {
        "input_ids": ids(s, 16),
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([3, 5]),
    }


for _name, _make in {
    "whisper": _whisper, "speech_to_text": _speech_to_text, "clip": _clip, "videomae": _videomae,
    "timesformer": _timesformer, "vitmae": _vitmae, "patchtst": _patchtst, "patchtsmixer": _patchtsmixer,
    "time_series_transformer": partial(_time_series, "TimeSeriesTransformer"),
    "autoformer": partial(_time_series, "Autoformer"), "informer": partial(_time_series, "Informer"),
    "decision_transformer": _decision, "canine": _canine,
    "xlnet-questions": partial(_questions, "xlnet", d_inner=64, max_position_embeddings=NOT_GIVEN),
    "splinter-questions": partial(_questions, "splinter"), "gptj-questions": partial(_questions, "gptj", rotary_dim=4),
    "luke-questions": partial(_questions, "luke", entity_vocab_size=8, entity_emb_size=8),
}.items():  # fmt: skip
    named(_name, _make)


# -- masks that are asked, boolean indexing, layers left out at random, matching losses: captured whole, or refused
def sequences(seed: int) -> dict[str, Tensor]:
    return text(seed) | {"labels": labels(seed)}


def _detection(model: Any, size: int, trained: bool) -> Made:
    def boxes(seed: int) -> list[dict[str, Tensor]]:
        return [
            {"class_labels": torch.tensor([0, 1]), "boxes": 0.1 + 0.4 * drawn(seed + i, 2, 4)} for i in range(BATCH)
        ]

    def sample(seed: int) -> dict[str, Any]:
        return {"pixel_values": drawn(seed, BATCH, 3, size, size)} | ({"labels": boxes(seed)} if trained else {})

    return model, sample


def _detr(trained: bool) -> Made:
    t: Any = import_library("transformers")
    backbone = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    config = t.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, num_queries=5,
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_labels=3,
    )  # fmt: skip
    return _detection(t.DetrForObjectDetection(config), IMAGE, trained)


def _yolos(trained: bool) -> Made:
    t: Any = import_library("transformers")
    config = t.YolosConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=[IMAGE, IMAGE],
        patch_size=8, num_detection_tokens=5, num_labels=3,
    )  # fmt: skip
    return _detection(t.YolosForObjectDetection(config), IMAGE, trained)


def _mask2former() -> Made:
    t: Any = import_library("transformers")
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = t.SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, out_features=stages
    )
    config = t.Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=32,
        encoder_layers=1, decoder_layers=2, num_attention_heads=4, dim_feedforward=32, num_queries=5, num_labels=3,
        train_num_points=16,
    )  # fmt: skip

    def sample(seed: int) -> dict[str, Any]:
        masks = [(drawn(seed + i, 2, 64, 64) > 0.5).float() for i in range(BATCH)]
        kinds = [torch.tensor([0, 1]) for _ in range(BATCH)]
        return {"pixel_values": drawn(seed, BATCH, 3, 64, 64), "mask_labels": masks, "class_labels": kinds}

    return t.Mask2FormerForUniversalSegmentation(config), sample


def _reformer() -> Made:
    t: Any = import_library("transformers")
    config = t.ReformerConfig(
        vocab_size=VOCAB, hidden_size=32, attention_head_size=8, num_attention_heads=4, attn_layers=["local", "lsh"],
        feed_forward_size=64, axial_pos_shape=[4, 4], axial_pos_embds_dim=[16, 16], max_position_embeddings=16,
        local_attn_chunk_length=4, lsh_attn_chunk_length=4, num_buckets=4, num_hashes=1, is_decoder=True,
    )  # fmt: skip
    return t.ReformerModelWithLMHead(config), lambda seed: {"input_ids": ids(seed, 16), "labels": ids(seed, 16)}


def pretraining(seed: int) -> dict[str, Tensor]:
    return text(seed) | {"labels": ids(seed) % 2}


def with_languages(seed: int) -> dict[str, Tensor]:
    return text(seed) | {"lang_ids": torch.tensor([0, 1])}


def attending_globally(seed: int) -> dict[str, Tensor]:
    """The first word, and in the first sample the fourth too, attend to all."""
    x = sequences(seed)
    everywhere = torch.zeros_like(x["input_ids"])
    everywhere[:, 0] = 1
    everywhere[0, 3] = 1
    return x | {"global_attention_mask": everywhere}


def pairs_attending_globally(seed: int) -> dict[str, Tensor]:
    x = pairs(seed)
    everywhere = torch.zeros_like(x["input_ids"])
    everywhere[:, 0] = 1
    return x | {"attention_mask": torch.ones_like(everywhere), "global_attention_mask": everywhere}


def transcribed(seed: int) -> dict[str, Tensor]:
    return {"input_values": drawn(seed, BATCH, 800), "labels": ids(seed, 4)}


LANGUAGES = {"languages": ["en_XX", "de_DE"], "default_language": "en_XX"}
WITH_LAYERDROP = {k: x for k, x in SPEECH.items() if k != "layerdrop"}
DROPS = {"encoder_layerdrop": 0.1, "decoder_layerdrop": 0.1}
for _name, _make in {
    "electra-pretraining": partial(hf, "AutoModelForPreTraining", "electra", pretraining),
    "xmod": partial(hf, "AutoModelForMaskedLM", "xmod", text, **LANGUAGES),
    "xmod-languages": partial(hf, "AutoModelForMaskedLM", "xmod", with_languages, **LANGUAGES),
    "longformer-sequences": partial(hf, "AutoModelForSequenceClassification", "longformer", sequences, **EXTRA["longformer"]),
    "longformer-sequences-global": partial(
        hf, "AutoModelForSequenceClassification", "longformer", attending_globally, **EXTRA["longformer"]
    ),
    "led-global": partial(hf, "AutoModelForSeq2SeqLM", "led", pairs_attending_globally, **(EXTRA.get("led", {}) | DROPS)),
    "wav2vec2-layerdrop": partial(hf, "AutoModelForAudioClassification", "wav2vec2", sound, **WITH_LAYERDROP),
    "hubert-layerdrop": partial(hf, "AutoModelForAudioClassification", "hubert", sound, **WITH_LAYERDROP),
    "wav2vec2-ctc": partial(hf, "AutoModelForCTC", "wav2vec2", transcribed, **SPEECH),
    "bart-layerdrop": partial(hf, "AutoModelForSeq2SeqLM", "bart", pairs, **DROPS),
    "m2m_100-without-layerdrop": partial(
        hf, "AutoModelForSeq2SeqLM", "m2m_100", pairs, encoder_layerdrop=0.0, decoder_layerdrop=0.0
    ),
    "m2m_100-layerdrop": partial(hf, "AutoModelForSeq2SeqLM", "m2m_100", pairs, **DROPS),
    "opt-layerdrop": partial(hf, "AutoModelForCausalLM", "opt", text, layerdrop=0.1),
    "detr": partial(_detr, False), "detr-loss": partial(_detr, True),
    "yolos": partial(_yolos, False), "yolos-loss": partial(_yolos, True),
    "mask2former-loss": _mask2former, "reformer": _reformer,
}.items():  # fmt: skip
    named(_name, _make)
