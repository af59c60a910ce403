"""The larger convolutional networks of the zoo, with the sizes that their publications say.

The source "torchvision" is its model documentation (parameters, and GFLOPs as multiply-adds). The
source "pytorchcv" is the tables and assertions of the imgclsmob/pytorchcv model zoo. It counts
norms and activations among the operations, so that the rounder number of the paper is used instead
where there is one. Where a family has several sizes, the larger ones are not `sampled`: they have
the layers of the smaller ones and take longer to measure. No VGG is sampled either, since many
boards cannot hold half a gigabyte of weights.
"""

from __future__ import annotations

from latfarm_controller.zoo.family import Published, family

_DENSENET = "Huang et al. 2017, Densely Connected Convolutional Networks, CVPR"
_GOOGLENET = "Szegedy et al. 2015, Going Deeper with Convolutions, CVPR"
_NIN = "Lin et al. 2014, Network In Network, ICLR"
_REGNET = "Radosavovic et al. 2020, Designing Network Design Spaces, CVPR"
_RESNET = "He et al. 2016, Deep Residual Learning, CVPR"
_VGG = "Simonyan and Zisserman 2015, Very Deep Convolutional Networks, ICLR"
_VOVNET = "Lee et al. 2019, VoVNet, CVPR workshops"


def _exact(parameters: int, macs: float | None, source: str, within: float = 0.01) -> Published:
    """Published figures with exact parameters; `within` is the tolerance of `macs`."""
    return Published(parameters, 0, macs, within if macs else 0, source)


def _regnet(parameters: int, macs: float) -> Published:
    """The published figures of a RegNet."""
    return _exact(parameters, macs, "pytorchcv; Radosavovic et al. 2020, appendix")


ALL = (
    family(
        "alexnet",
        "cnn.alexnet",
        "Krizhevsky 2014, One weird trick, arXiv:1404.5997",
        "alexnet",
        published=_exact(61_100_840, 0.71e9, "torchvision"),
    ),
    family(
        "vgg11",
        "cnn.vgg",
        _VGG,
        "vgg",
        sampled=False,
        published=_exact(132_863_336, 7.61e9, "torchvision"),
    ),
    family(
        "vgg16",
        "cnn.vgg",
        _VGG,
        "vgg",
        sampled=False,
        published=_exact(138_357_544, 15.47e9, "torchvision"),
    ),
    family(
        "vgg19",
        "cnn.vgg",
        _VGG,
        "vgg",
        sampled=False,
        published=_exact(143_667_240, 19.63e9, "torchvision"),
    ),
    family(
        "repvgg-a0",
        "cnn.repvgg",
        "Ding et al. 2021, RepVGG, CVPR",
        "repvgg",
        "vgg",
        published=Published(8.30e6, 0.01, 1360e6, 0.01, "Ding et al. 2021, table 4: 1.4 B"),
    ),
    family(
        "nin-imagenet",
        "cnn.network_in_network",
        _NIN,
        "network-in-network",
        published=Published(7.6e6, 0.01, 1100e6, 0.01, "29 MB in Caffe's model zoo"),
    ),
    family(
        "nin-cifar",
        "cnn.network_in_network",
        _NIN,
        "network-in-network",
        resolution=32,
        published=_exact(966_986, 222.97e6, "pytorchcv"),
    ),
    family(
        "googlenet",
        "cnn.googlenet",
        _GOOGLENET,
        "inception",
        published=_exact(6_624_904, 1.50e9, "torchvision, without auxiliary classifiers"),
    ),
    family(
        "inception-v1",
        "cnn.googlenet",
        _GOOGLENET,
        "inception",
        published=_exact(
            6_998_552,
            (1502 - 34 + 118) * 1e6,
            "Caffe's bvlc_googlenet; sum of table 1, whose 34 M of the first conv are 118 M",
        ),
    ),
    family(
        "inception-v3",
        "cnn.inception",
        "Szegedy et al. 2016, Rethinking the Inception Architecture, CVPR",
        "inception",
        resolution=299,
        published=_exact(23_834_568, 5.71e9, "torchvision, without auxiliary classifier"),
    ),
    family(
        "inception-v4",
        "cnn.inception",
        "Szegedy et al. 2017, Inception-v4, AAAI",
        "inception",
        resolution=299,
        sampled=False,
        published=_exact(42_679_816, 12.29e9, "pytorchcv; 24.58 GFLOPs in Open Model Zoo"),
    ),
    family(
        "xception",
        "cnn.xception",
        "Chollet 2017, Xception, CVPR",
        "xception",
        "inception",
        resolution=299,
        published=_exact(22_855_952, 8400e6, "Chollet 2017, table 3; pytorchcv"),
    ),
    family(
        "resnet18",
        "cnn.resnet",
        _RESNET,
        "resnet",
        published=_exact(11_689_512, 1814e6, "torchvision", 0.001),
    ),
    family(
        "resnet34",
        "cnn.resnet",
        _RESNET,
        "resnet",
        sampled=False,
        published=_exact(21_797_672, 3.66e9, "torchvision"),
    ),
    family(
        "resnet50",
        "cnn.resnet",
        _RESNET,
        "resnet",
        published=_exact(25_557_032, 4.09e9, "torchvision"),
    ),
    family(
        "resnet101",
        "cnn.resnet",
        _RESNET,
        "resnet",
        sampled=False,
        published=_exact(44_549_160, 7.80e9, "torchvision"),
    ),
    family(
        "densenet121",
        "cnn.densenet",
        _DENSENET,
        "densenet",
        published=_exact(7_978_856, 2.83e9, "torchvision"),
    ),
    family(
        "darknet19",
        "cnn.darknet",
        "Redmon and Farhadi 2017, YOLO9000, CVPR",
        "darknet",
        published=_exact(
            20_842_376, 5_580 / 2 * 1e6, "pytorchcv; 5.58 billion operations in the paper"
        ),
    ),
    family(
        "vovnet39",
        "cnn.vovnet",
        _VOVNET,
        "vovnet",
        published=_exact(22_600_296, 7086e6, "pytorchcv"),
    ),
    family(
        "vovnet27-slim",
        "cnn.vovnet",
        _VOVNET,
        "vovnet",
        published=_exact(3_525_736, None, "pytorchcv asserts parameters only"),
    ),
    family(
        "regnetx-200mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        sampled=False,
        published=_regnet(2_684_792, 200e6),
    ),
    family(
        "regnetx-400mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        published=_regnet(5_157_512, 400e6),
    ),
    family(
        "regnetx-600mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        sampled=False,
        published=_regnet(6_196_040, 600e6),
    ),
    family(
        "regnetx-800mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        sampled=False,
        published=_regnet(7_259_656, 800e6),
    ),
    family(
        "regnety-200mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        sampled=False,
        published=_regnet(3_162_996, 200e6),
    ),
    family(
        "regnety-400mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        published=_regnet(4_344_144, 400e6),
    ),
    family(
        "regnety-600mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        sampled=False,
        published=_regnet(6_055_160, 600e6),
    ),
    family(
        "regnety-800mf",
        "cnn.regnet",
        _REGNET,
        "regnet",
        sampled=False,
        published=_regnet(6_263_168, 800e6),
    ),
    family(
        "nasbench201",
        "cnn.nasbench201",
        "Dong and Yang 2020, NAS-Bench-201, ICLR",
        "nasbench",
        resolution=32,
        drawn=True,
    ),
    family(
        "synthetic", "cnn.synthetic", "drawn at random; no publication", "synthetic", drawn=True
    ),
)
