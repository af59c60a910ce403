"""The transformers of the zoo, with the sizes that their publications say.

The source "timm" is the parameter counts of its models, and the multiply-adds of its benchmark
tables up to PyTorch 1.13. These count both products of attention; later tables, with fused
attention, do not. The tool behind the tables (fvcore) adds 2 for each element of a batch norm and 5
for each element of a layer norm; these are subtracted here (`norms`).

The source "transformers" is its BertModel of the named checkpoint. With the head that guesses
masked words, the models have the 4.4, 11.3 and 29.1 million parameters of Turc et al. 2019, table
1. No source says their multiply-adds.

No transformer is `sampled`: priors and calibration draw from image classifiers until fusion
detection covers attention.
"""

from __future__ import annotations

from latfarm_controller.zoo.family import Family, Published, family

_TURC = "Turc et al. 2019, Well-Read Students Learn Better, arXiv:1908.08962"


def _bert(name: str, parameters: int, checkpoint: str) -> Family:
    """A BERT with the number of parameters of a checkpoint."""
    return family(
        name,
        "transformers.bert",
        _TURC,
        "bert",
        resolution=128,
        task="language",
        sampled=False,
        published=Published(
            parameters, 0, None, 0, f"transformers, google/bert_uncased_{checkpoint}"
        ),
    )


def _timm(parameters: int, gmacs: float, norms: float) -> Published:
    """Published figures of timm: `gmacs` is rounded to 0.01; `norms` million of them are norms."""
    macs = gmacs * 1e9 - norms * 1e6
    return Published(parameters, 0, macs, max(0.01, 0.005 / gmacs), "timm")


def _vit(name: str, published: Published) -> Family:
    """A vision transformer."""
    source = "Touvron et al. 2021, Training data-efficient image transformers, ICML"
    return family(name, "transformers.vit", source, "vit", sampled=False, published=published)


def _mobilevit(name: str, published: Published) -> Family:
    """A MobileViT."""
    return family(
        name,
        "transformers.mobilevit",
        "Mehta and Rastegari 2022, MobileViT, ICLR",
        "mobilevit",
        "mobilenet",
        resolution=256,
        sampled=False,
        published=published,
    )


ALL = (
    _vit("vit-tiny", _timm(5_717_416, 1.26, 4.7)),
    _vit("vit-small", _timm(22_050_664, 4.61, 9.5)),
    _mobilevit("mobilevit-xxs", _timm(1_272_024, 0.42, 10.8)),
    _mobilevit("mobilevit-xs", _timm(2_317_848, 1.05, 26.3)),
    _mobilevit("mobilevit-s", _timm(5_578_632, 2.03, 32.6)),
    _bert("bert-tiny", 4_385_920, "L-2_H-128_A-2"),
    _bert("bert-mini", 11_170_560, "L-4_H-256_A-4"),
    _bert("bert-small", 28_763_648, "L-4_H-512_A-8"),
)
