"""Tiny models of timm, from configuration."""

from __future__ import annotations

from functools import partial
from typing import Any

from configuration_tables import BATCH, IMAGE, Made, drawn, named

from rekindle.zoo.vision import import_library


def timm(name: str, image: int = IMAGE, batch: int = BATCH, **options: Any) -> Made:
    made: Any = import_library("timm")
    model = made.create_model(name, pretrained=False, num_classes=3, **options)
    return model, lambda seed: (drawn(seed, batch, 3, image, image),)


VIT = {"img_size": IMAGE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"timm-{n}": (n, {"image": 64}) for n in (
        "test_byobnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet", "test_efficientnet_evos",
        "test_efficientnet_gn", "test_efficientnet_ln", "test_mambaout", "test_nfnet", "test_resnet",
    )},
    **{f"timm-{n}": (n, {"image": 160}) for n in ("test_vit", "test_vit2", "test_vit3", "test_vit4", "test_vit_relpos")},
    "timm-test_coatnet": ("test_coatnet", {"image": 64, "img_size": 64}),
    "timm-test_maxvit": ("test_maxvit", {"image": 64, "img_size": 64}),
    "timm-beit": ("beit_base_patch16_224", VIT),
    "timm-cait": ("cait_xxs24_224", VIT | {"depth_token_only": 1}),
    "timm-convit": ("convit_tiny", VIT | {"local_up_to_layer": 1}),
    "timm-crossvit": ("crossvit_tiny_240", {"image": 48, "img_size": 48, "embed_dim": [16, 32], "num_heads": [2, 2],
                                            "depth": [[1, 1, 0]], "patch_size": [12, 16], "img_scale": (1.0, 1.0)}),
    "timm-deit3": ("deit3_small_patch16_224", VIT | {"drop_path_rate": 0.2}),
    "timm-eva": ("eva02_tiny_patch14_224", VIT),
    "timm-swin": ("swin_tiny_patch4_window7_224", {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2),
                                                   "num_heads": (2, 4)}),
    "timm-swinv2": ("swinv2_tiny_window8_256", {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2),
                                                "num_heads": (2, 4)}),
    "timm-sequencer2d": ("sequencer2d_s", {"img_size": 64, "image": 64, "layers": [1, 1, 1, 1],
                                           "embed_dims": [16, 16, 16, 16], "hidden_sizes": [4, 4, 4, 4]}),
    "timm-davit": ("davit_tiny", {"image": 64, "depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 4),
                                  "window_size": 4}),
    "timm-edgenext": ("edgenext_xx_small", {"image": 64, "depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)}),
    "timm-inception_next": ("inception_next_tiny", {"image": 64, "depths": (1, 1, 1, 1), "dims": (16, 16, 32, 32)}),
    "timm-levit": ("levit_128s", {"image": 64, "img_size": 64, "embed_dim": (16, 32, 32), "key_dim": 8, "num_heads": (2, 2, 4),
                                  "depth": (1, 1, 1)}),
    "timm-mobilenetv3": ("mobilenetv3_small_050", {"image": 64}),
    "timm-mobilenetv4": ("mobilenetv4_conv_small_035", {"image": 64}),
    "timm-pit": ("pit_ti_224", {"image": 64, "img_size": 64, "base_dims": [8, 8, 8], "depth": [1, 1, 1], "heads": [2, 2, 2]}),
    "timm-pvt": ("pvt_v2_b0", {"image": 64, "depths": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 32),
                               "num_heads": (1, 2, 2, 4)}),
    "timm-regnet": ("regnetx_002", {"image": 64}),
    "timm-repvit": ("repvit_m0_9", {"image": 64, "embed_dim": (8, 16, 24, 32), "depth": (1, 1, 1, 1)}),
    "timm-res2net": ("res2net50_14w_8s", {"image": 64, "layers": [1, 1, 1, 1]}),
    "timm-skresnet": ("skresnet18", {"image": 64, "layers": [1, 1, 1, 1]}),
    "timm-twins": ("twins_pcpvt_small", {"image": 64, "img_size": 64, "embed_dims": (8, 16, 16, 32), "depths": (1, 1, 1, 1),
                                         "num_heads": (1, 2, 2, 4)}),
    "timm-visformer": ("visformer_tiny", {"image": 64, "img_size": 64, "embed_dim": 32, "depth": (1, 1, 1), "num_heads": 2,
                                          "init_channels": 8}),
    "timm-xcit": ("xcit_nano_12_p8_224", {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "timm-tnt": ("tnt_s_legacy_patch16_224", {"img_size": 32, "patch_size": 16, "embed_dim": 32, "depth": 2, "inner_dim": 8,
                                              "num_heads_outer": 4, "num_heads_inner": 2}),
    "timm-ghostnet": ("ghostnet_050", {"image": 64}),
    "timm-hardcorenas": ("lcnet_050", {"image": 64}),
    "timm-vovnet": ("ese_vovnet19b_slim_dw", {"image": 64}),
    "timm-dla": ("dla46_c", {"image": 64}),
    "timm-dpn": ("dpn48b", {"image": 64, "k_sec": (1, 1, 1, 1), "num_init_features": 10}),
    "timm-starnet": ("starnet_s1", {"image": 64, "depths": [1, 1, 1, 1], "base_dim": 8}),
    "timm-fastvit": ("fastvit_t8", {"image": 64, "layers": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 32)}),
    "timm-hiera": ("hiera_tiny_224", {"image": 64, "img_size": (64, 64), "embed_dim": 16, "num_heads": 1,
                                      "stages": (1, 1, 1, 1)}),
    "timm-swiftformer": ("swiftformer_xs", {"image": 64, "layers": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32]}),
    "timm-shvit": ("shvit_s1", {"image": 64, "embed_dim": (16, 32, 32), "partial_dim": (8, 8, 8), "depth": (1, 1, 1)}),
}  # fmt: skip


for _name, (_kind, _options) in TIMM.items():
    named(_name, partial(timm, _kind, **{"image": IMAGE} | _options))


def timm_class(where: str, kind: str, image: int, more: dict[str, str], **options: Any) -> Made:
    """An architecture whose options its entry points do not take. more : option -> name of a class in the same file."""
    file: Any = import_library(f"timm.models.{where}")
    model = getattr(file, kind)(num_classes=3, **options, **{k: getattr(file, v) for k, v in more.items()})
    return model, lambda seed: (drawn(seed, BATCH, 3, image, image),)


MIX: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
FOUR: dict[str, Any] = {"depths": (1, 1, 1, 1)}


for _name, _where, _kind, _image, _more, _options in [
    ("mixer", "mlp_mixer", "MlpMixer", 32, {}, MIX),
    ("resmlp", "mlp_mixer", "MlpMixer", 32, {"block_layer": "ResBlock", "norm_layer": "Affine"}, MIX | {"mlp_ratio": 4}),
    ("gmlp", "mlp_mixer", "MlpMixer", 32, {"block_layer": "SpatialGatingBlock"}, MIX | {"mlp_ratio": 6}),
    ("convmixer", "convmixer", "ConvMixer", 32, {}, {"dim": 16, "depth": 2, "kernel_size": 3, "patch_size": 4}),
    ("metaformer", "metaformer", "MetaFormer", 64, {}, FOUR | {"dims": (8, 16, 32, 32)}),
    ("focalnet", "focalnet", "FocalNet", 64, {}, FOUR | {"embed_dim": 8}),
    ("gcvit", "gcvit", "GlobalContextVit", 64, {},
     FOUR | {"img_size": 64, "embed_dim": 8, "num_heads": (1, 2, 2, 2), "window_ratio": (16, 16, 16, 32)}),
    ("nest", "nest", "Nest", 32, {}, {"img_size": 32, "patch_size": 2, "num_levels": 2, "embed_dims": (16, 32),
                                      "num_heads": (2, 4), "depths": (1, 1)}),
    ("volo", "volo", "VOLO", 64, {}, {"layers": (1, 1, 1, 1), "img_size": 64, "embed_dims": (16, 32, 32, 32),
                                      "num_heads": (2, 4, 4, 4)}),
]:  # fmt: skip
    named(f"timm-{_name}", partial(timm_class, _where, _kind, _image, _more, **_options))
