"""The convolutional networks for phones, with the sizes that their publications say.

Sources are named as in `cnn.catalogue`. As there, the larger sizes of a family are not `sampled`.
"""

from __future__ import annotations

from latfarm_controller.zoo.family import Published, family

_EFFICIENTNET = "Tan and Le 2019, EfficientNet, ICML"
_MOBILENET_V3 = "Howard et al. 2019, Searching for MobileNetV3, ICCV"
_MOBILEONE = "Vasu et al. 2023, MobileOne, CVPR"
_MNASNET = "Tan et al. 2019, MnasNet, CVPR"
_PROXYLESS = "Cai et al. 2019, ProxylessNAS, ICLR"
_SHUFFLENET = "Ma et al. 2018, ShuffleNet V2, ECCV"
_SQUEEZENET = "Iandola et al. 2016, SqueezeNet, arXiv:1602.07360"


def _exact(parameters: int, macs: float, source: str, within: float = 0.01) -> Published:
    """Published figures with exact parameters; `within` is the tolerance of `macs`."""
    return Published(parameters, 0, macs, within, source)


def _mobileone(parameters: float, macs: float, within: float = 0.01) -> Published:
    """The published figures of a MobileOne; `within` is the tolerance of `parameters`."""
    return Published(parameters, within, macs, 0.01, "Vasu et al. 2023")


ALL = (
    family(
        "squeezenet",
        "mobile.squeezenet",
        "Iandola et al. 2016, SqueezeNet 1.1, its repository",
        "squeezenet",
        published=_exact(1_235_496, 349e6, "torchvision's squeezenet1_1"),
    ),
    family(
        "squeezenet1.0",
        "mobile.squeezenet",
        _SQUEEZENET,
        "squeezenet",
        sampled=False,
        published=_exact(1_248_424, 0.82e9, "torchvision"),
    ),
    family(
        "mobilenet-v1",
        "mobile.mobilenet",
        "Howard et al. 2017, MobileNets, arXiv:1704.04861",
        "mobilenet",
        published=_exact(4_231_976, 569e6, "pytorchcv; Howard et al. 2017, table 4"),
    ),
    family(
        "mobilenet-v2",
        "mobile.mobilenet",
        "Sandler et al. 2018, MobileNetV2, CVPR",
        "mobilenet",
        published=_exact(3_504_872, 300e6, "torchvision; Sandler et al. 2018, table 4"),
    ),
    family(
        "mobilenet-v3-large",
        "mobile.mobilenet",
        _MOBILENET_V3,
        "mobilenet",
        published=_exact(5_483_032, 0.22e9, "torchvision", 0.02),
    ),
    family(
        "mobilenet-v3-small",
        "mobile.mobilenet",
        _MOBILENET_V3,
        "mobilenet",
        published=_exact(2_542_856, 56e6, "torchvision; Howard et al. 2019, table 4"),
    ),
    family(
        "mobileone-s0",
        "mobile.mobileone",
        _MOBILEONE,
        "mobileone",
        published=_mobileone(2.1e6, 275e6, 0.02),
    ),
    family(
        "mobileone-s1",
        "mobile.mobileone",
        _MOBILEONE,
        "mobileone",
        sampled=False,
        published=_mobileone(4.8e6, 825e6),
    ),
    family(
        "mobileone-s2",
        "mobile.mobileone",
        _MOBILEONE,
        "mobileone",
        sampled=False,
        published=_mobileone(7.8e6, 1299e6),
    ),
    family(
        "mobileone-s3",
        "mobile.mobileone",
        _MOBILEONE,
        "mobileone",
        sampled=False,
        published=_mobileone(10.1e6, 1896e6),
    ),
    family(
        "mobileone-s4",
        "mobile.mobileone",
        _MOBILEONE,
        "mobileone",
        sampled=False,
        published=_mobileone(14.8e6, 2978e6),
    ),
    family(
        "mnasnet-a1",
        "mobile.mnasnet",
        _MNASNET,
        "mnasnet",
        published=_exact(3_887_038, 312e6, "pytorchcv; Tan et al. 2019, table 1"),
    ),
    family(
        "mnasnet-b1",
        "mobile.mnasnet",
        _MNASNET,
        "mnasnet",
        published=_exact(4_383_312, 315e6, "torchvision; Tan et al. 2019"),
    ),
    family(
        "proxyless-mobile",
        "mobile.proxylessnas",
        _PROXYLESS,
        "proxylessnas",
        published=_exact(4_080_512, 320e6, "pytorchcv; Cai et al. 2019, repository"),
    ),
    family(
        "proxyless-cpu",
        "mobile.proxylessnas",
        _PROXYLESS,
        "proxylessnas",
        sampled=False,
        published=_exact(
            4_361_648, 459.96e6, "pytorchcv, norms and activations counted: 20 M", 0.05
        ),
    ),
    family(
        "proxyless-gpu",
        "mobile.proxylessnas",
        _PROXYLESS,
        "proxylessnas",
        sampled=False,
        published=_exact(
            7_119_848, 476.08e6, "pytorchcv, norms and activations counted: 11 M", 0.025
        ),
    ),
    family(
        "efficientnet-b0",
        "mobile.efficientnet",
        _EFFICIENTNET,
        "efficientnet",
        published=_exact(5_288_548, 390e6, "torchvision; Tan and Le 2019, table 2", 0.0128),
    ),
    family(
        "efficientnet-b1",
        "mobile.efficientnet",
        _EFFICIENTNET,
        "efficientnet",
        resolution=240,
        sampled=False,
        published=_exact(7_794_184, 0.69e9, "torchvision"),
    ),
    family(
        "efficientnet-b2",
        "mobile.efficientnet",
        _EFFICIENTNET,
        "efficientnet",
        resolution=260,
        sampled=False,
        published=_exact(9_109_994, 1.0e9, "torchvision; Tan and Le 2019, table 2"),
    ),
    family(
        "efficientnet-b3",
        "mobile.efficientnet",
        _EFFICIENTNET,
        "efficientnet",
        resolution=300,
        sampled=False,
        published=_exact(12_233_232, 1.83e9, "torchvision"),
    ),
    family(
        "efficientnet-b4",
        "mobile.efficientnet",
        _EFFICIENTNET,
        "efficientnet",
        resolution=380,
        sampled=False,
        published=_exact(19_341_616, 4.39e9, "torchvision"),
    ),
    family(
        "ghostnet",
        "mobile.ghostnet",
        "Han et al. 2020, GhostNet, CVPR",
        "ghostnet",
        published=Published(5_180_840, 0.001, 141e6, 0.01, "pytorchcv; Han et al. 2020"),
    ),
    family(
        "shufflenet-v2-0.5x",
        "mobile.shufflenet",
        _SHUFFLENET,
        "shufflenet",
        sampled=False,
        published=_exact(1_366_792, 0.04e9, "torchvision", 0.0125),
    ),
    family(
        "shufflenet-v2",
        "mobile.shufflenet",
        _SHUFFLENET,
        "shufflenet",
        published=_exact(2_278_604, 146e6, "torchvision; Ma et al. 2018, table 8"),
    ),
    family(
        "shufflenet-v2-1.5x",
        "mobile.shufflenet",
        _SHUFFLENET,
        "shufflenet",
        sampled=False,
        published=_exact(3_503_624, 0.30e9, "torchvision", 0.0167),
    ),
    family(
        "shufflenet-v2-2.0x",
        "mobile.shufflenet",
        _SHUFFLENET,
        "shufflenet",
        sampled=False,
        published=_exact(7_393_996, 0.58e9, "torchvision"),
    ),
)
