"""The models that `make bench-models` exports: which library makes each, and with which inputs.

All have random weights, so nothing is downloaded. Families are those of the table: models of one
family are built from the same blocks. This module needs no library, because the environment that
exports and the one that predicts both import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Export:
    """A model to export.

    Attributes:
        name: its name in the table; for timm the name of the model.
        family: the row of the table by family that it belongs to.
        library: timm, transformers or torch.
        model: class in `transformers`, or function in `exporting` for torch; empty for timm.
        config: arguments of the class's configuration; sizes as published unless given.
        inputs: shape of each input; a float tensor, or token ids where the name is `input_ids`.
    """

    name: str
    family: str
    library: str = "timm"
    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _timm(family: str, *names: str, side: int = 224) -> tuple[Export, ...]:
    """Models of timm that read an RGB image."""
    return tuple(Export(name, family, inputs={"x": (1, 3, side, side)}) for name in names)


def _text(name: str, family: str, model: str, tokens: int = 128, **config: Any) -> Export:
    """A model of transformers that reads token ids."""
    return Export(name, family, "transformers", model, config, {"input_ids": (1, tokens)})


def _vision(name: str, family: str, model: str, side: int = 224, **config: Any) -> Export:
    """A model of transformers that reads an RGB image."""
    return Export(name, family, "transformers", model, config, {"pixel_values": (1, 3, side, side)})


def _torch(name: str, family: str, model: str, **inputs: tuple[int, ...]) -> Export:
    """A small network that is written with torch alone."""
    return Export(name, family, "torch", model, inputs=inputs)


_SMALL_DECODER = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 32000,
    "use_cache": False,
}
"""Sizes of a small decoder with grouped queries, near to SmolLM 135M with a fifth of its layers."""

_ALBERT_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
"""Sizes of ALBERT base; those of the configuration are the largest ones that were published."""

ALL: tuple[Export, ...] = (
    *_timm("resnets", "resnet18", "resnet50", "resnext50_32x4d", "seresnet50", "wide_resnet50_2"),
    *_timm("resnets", "resnet50d", "res2net50d", "cspresnet50", "gernet_s", "selecsls42b"),
    *_timm("older CNNs", "vgg11", "densenet121", "dla34", "xception41", "darknet53"),
    *_timm("older CNNs", "inception_v3", side=299),
    *_timm("mobile CNNs", "mobilenetv2_100", "mobilenetv3_large_100", "mobilenetv3_small_100"),
    *_timm("mobile CNNs", "mobilenetv4_conv_small", "mobileone_s0", "mnasnet_100", "fbnetc_100"),
    *_timm("mobile CNNs", "ghostnet_100", "ghostnetv2_100", "lcnet_050", "tinynet_a", "rexnet_100"),
    *_timm("mobile CNNs", "efficientnet_b0", "efficientnet_lite0", "efficientnetv2_rw_t"),
    *_timm("mobile CNNs", "starnet_s1", "repvit_m0_9", "fastvit_t8"),
    *_timm("other CNNs", "regnetx_004", "regnety_004", "repvgg_a0", "hrnet_w18_small"),
    *_timm("other CNNs", "convnext_tiny", "convnextv2_atto", "edgenext_xx_small"),
    *_timm("ViTs", "vit_tiny_patch16_224", "vit_small_patch16_224", "deit_tiny_patch16_224"),
    *_timm("ViTs", "deit3_small_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224"),
    *_timm("ViTs", "cait_xxs24_224", "xcit_nano_12_p16_224", "hiera_tiny_224"),
    *_timm("windowed transformers", "swin_tiny_patch4_window7_224", "maxvit_tiny_rw_224"),
    *_timm("windowed transformers", "swinv2_tiny_window8_256", side=256),
    *_timm("hybrids", "mobilevit_s", "mobilevitv2_050", "efficientformer_l1", "efficientvit_b0"),
    *_timm("hybrids", "poolformer_s12", "pvt_v2_b0", "levit_128s", "tiny_vit_5m_224"),
    *_timm("hybrids", "coatnet_0_rw_224", "mixer_s32_224", "resmlp_12_224"),
    _text("bert", "text encoders", "BertModel"),
    _text("distilbert", "text encoders", "DistilBertModel"),
    _text("roberta", "text encoders", "RobertaModel"),
    _text("albert", "text encoders", "AlbertModel", **_ALBERT_BASE),
    _text("electra-small", "text encoders", "ElectraModel"),
    _text("mobilebert", "text encoders", "MobileBertModel"),
    _text("t5-encoder", "text encoders", "T5EncoderModel"),
    _text("gpt2", "text decoders", "GPT2Model", use_cache=False),
    _text("llama-small", "text decoders", "LlamaModel", **_SMALL_DECODER),
    _text("qwen2-small", "text decoders", "Qwen2Model", **_SMALL_DECODER),
    _vision("vit-base", "ViTs", "ViTModel"),
    _vision("dinov2-base", "ViTs", "Dinov2Model"),
    _vision("clip-vision", "ViTs", "CLIPVisionModel"),
    _vision("segformer-b0", "dense prediction", "SegformerModel", side=256),
    _torch("unet", "dense prediction", "unet", x=(1, 3, 256, 256)),
    _torch("fpn", "dense prediction", "pyramid", x=(1, 3, 256, 256)),
    _torch("lstm", "recurrent and audio", "lstm", x=(1, 64, 128)),
    _torch("gru", "recurrent and audio", "gru", x=(1, 64, 128)),
    _torch("tcn", "recurrent and audio", "tcn", x=(1, 40, 400)),
    _torch("transformer-encoder", "text encoders", "encoder", x=(1, 64, 256)),
)
"""The whole suite."""

QUICK = ("resnet18", "mobilenetv3_small_100", "vit_tiny_patch16_224")
"""The models of `--quick`."""

DOZEN = (
    *("resnet18", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "regnetx_004"),
    *("convnextv2_atto", "vit_tiny_patch16_224", "mobilevit_s", "poolformer_s12", "electra-small"),
    *("unet", "lstm"),
)
"""A dozen models of different families, for `--dozen`."""


def named(names: tuple[str, ...]) -> tuple[Export, ...]:
    """The models of these names, in the order of the suite.

    Raises:
        KeyError: there is no such model.
    """
    known = {export.name: export for export in ALL}
    return tuple(export for export in ALL if export in [known[name] for name in names])
