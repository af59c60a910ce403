"""The transformers of the zoo, with the sizes that their publications say.

The source "timm" is the parameter counts of its models, and the multiply-adds of its benchmark
tables up to PyTorch 1.13. These count both products of attention; later tables, with fused
attention, do not. The tool behind the tables (fvcore) adds 2 for each element of a batch norm and 5
for each element of a layer norm; these are subtracted here (`norms`).

The source "transformers" is its BertModel of the named checkpoint. With the head that guesses
masked words, the models have the 4.4, 11.3 and 29.1 million parameters of Turc et al. 2019, table
1. No source says their multiply-adds.

The parameters of T5's encoders follow from the configurations of their checkpoints. The bias by
relative position is counted as exporters write it: one number for each head and pair of places. So
are the biases and masks of Swin's windows: of timm's 28,288,354 parameters 23,322 become 331,338,
and the masks are 220,892 more. To EVA-02's 5.50 million parameters a head for 1,000 classes is
added.
"""

from __future__ import annotations

from latfarm_controller.zoo.family import Family, Published, family

_TURC = "Turc et al. 2019, Well-Read Students Learn Better, arXiv:1908.08962"

_TAY = "Tay et al. 2022, Scale Efficiently, ICLR"
_RAFFEL = "Raffel et al. 2020, Exploring the Limits of Transfer Learning, JMLR 21"


def _bert(name: str, parameters: int, checkpoint: str) -> Family:
    """A BERT with the number of parameters of a checkpoint."""
    return family(
        name,
        "transformers.bert",
        _TURC,
        "bert",
        resolution=128,
        task="language",
        published=Published(
            parameters, 0, None, 0, f"transformers, google/bert_uncased_{checkpoint}"
        ),
    )


def _timm(parameters: int, gmacs: float, norms: float, *, rounded: bool = False) -> Published:
    """Published figures of timm: `gmacs` is rounded to 0.01; `norms` million of them are norms.

    With `rounded`, only some digits of the number of parameters are known.
    """
    macs = gmacs * 1e9 - norms * 1e6
    return Published(parameters, 0.01 * rounded, macs, max(0.01, 0.005 / gmacs), "timm")


def _vit(name: str, published: Published) -> Family:
    """A vision transformer."""
    source = "Touvron et al. 2021, Training data-efficient image transformers, ICML"
    return family(name, "transformers.vit", source, "vit", published=published)


def _mobilevit(name: str, published: Published) -> Family:
    """A MobileViT."""
    return family(
        name,
        "transformers.mobilevit",
        "Mehta and Rastegari 2022, MobileViT, ICLR",
        "mobilevit",
        "mobilenet",
        resolution=256,
        published=published,
    )


def _convnext(name: str, published: Published, *, sampled: bool = True) -> Family:
    """A ConvNeXt."""
    source = "Liu et al. 2022, A ConvNet for the 2020s, CVPR"
    return family(
        name, "transformers.convnext", source, "convnext", sampled=sampled, published=published
    )


def _efficientformer(name: str, published: Published, *, sampled: bool = True) -> Family:
    """An EfficientFormer."""
    return family(
        name,
        "transformers.efficientformer",
        "Li et al. 2022, EfficientFormer, NeurIPS",
        "efficientformer",
        sampled=sampled,
        published=published,
    )


def _t5(name: str, source: str, parameters: int, checkpoint: str) -> Family:
    """The encoder of a T5 with the number of parameters of a checkpoint's encoder."""
    return family(
        name,
        "transformers.t5",
        source,
        "t5",
        resolution=128,
        task="language",
        published=Published(parameters, 0, None, 0, f"transformers, google/{checkpoint}"),
    )


ALL = (
    _vit("vit-tiny", _timm(5_717_416, 1.26, 4.7)),
    _vit("vit-small", _timm(22_050_664, 4.61, 9.5)),
    _vit("deit-tiny", _timm(5_910_800, 1.27, 4.8)),
    _vit("deit-small", _timm(22_436_432, 4.63, 9.5)),
    family(
        "eva02-tiny",
        "transformers.eva",
        "Fang et al. 2023, EVA-02, arXiv:2303.11331",
        "eva",
        "vit",
        published=_timm(5_693_000, 1.70, 5.9, rounded=True),
    ),
    family(
        "swin-tiny",
        "transformers.swin",
        "Liu et al. 2021, Swin Transformer, ICCV",
        "swin",
        published=_timm(28_817_262, 4.51, 18.6),
    ),
    _convnext("convnext-atto", _timm(3_700_000, 0.55, 4.7, rounded=True)),
    _convnext("convnext-femto", _timm(5_220_000, 0.79, 5.6, rounded=True)),
    _convnext("convnext-tiny", _timm(28_589_128, 4.47, 14.9), sampled=False),
    _efficientformer("efficientformer-l1", _timm(12_290_000, 1.30, 10.8, rounded=True)),
    _efficientformer(
        "efficientformer-l3", _timm(31_410_000, 3.93, 22.8, rounded=True), sampled=False
    ),
    _mobilevit("mobilevit-xxs", _timm(1_272_024, 0.42, 10.8)),
    _mobilevit("mobilevit-xs", _timm(2_317_848, 1.05, 26.3)),
    _mobilevit("mobilevit-s", _timm(5_578_632, 2.03, 32.6)),
    _bert("bert-tiny", 4_385_920, "L-2_H-128_A-2"),
    _bert("bert-mini", 11_170_560, "L-4_H-256_A-4"),
    _bert("bert-small", 28_763_648, "L-4_H-512_A-8"),
    _t5("t5-tiny", _TAY, 11_438_336, "t5-efficient-tiny"),
    _t5("t5-mini", _TAY, 20_336_000, "t5-efficient-mini"),
    _t5("t5-v1.1-small", _RAFFEL, 35_430_912, "t5-v1_1-small"),
)
