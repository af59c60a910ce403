"""The convolutional networks of the zoo, and what their publications say of them.

Sources named "torchvision" are its model documentation (parameters, GFLOPs as multiply-adds), those
named "pytorchcv" the tables and assertions of the imgclsmob/pytorchcv model zoo; the latter counts
activations among the operations, so there the paper's rounder number stands.
"""

from __future__ import annotations

from latfarm_controller.zoo.family import Published, family

ALL = (
    family(
        "mobilenet-v1",
        "mobilenet",
        "Howard et al. 2017, MobileNets, arXiv:1704.04861",
        "mobilenet",
        published=Published(4_231_976, 0, 569e6, 0.01, "pytorchcv; Howard et al. 2017, table 4"),
    ),
    family(
        "mobilenet-v2",
        "mobilenet",
        "Sandler et al. 2018, MobileNetV2, CVPR",
        "mobilenet",
        published=Published(3_504_872, 0, 300e6, 0.01, "torchvision; Sandler et al. 2018, table 4"),
    ),
    family(
        "mobilenet-v3-large",
        "mobilenet",
        "Howard et al. 2019, Searching for MobileNetV3, ICCV",
        "mobilenet",
        published=Published(5_483_032, 0, 219e6, 0.02, "torchvision; Howard et al. 2019, table 3"),
    ),
    family(
        "mobilenet-v3-small",
        "mobilenet",
        "Howard et al. 2019, Searching for MobileNetV3, ICCV",
        "mobilenet",
        published=Published(2_542_856, 0, 56e6, 0.02, "torchvision; Howard et al. 2019, table 3"),
    ),
    family(
        "mobileone-s0",
        "mobilenet",
        "Vasu et al. 2023, MobileOne, CVPR",
        "mobileone",
        published=Published(2.1e6, 0.02, 275e6, 0.01, "Vasu et al. 2023"),
    ),
    family(
        "mnasnet-a1",
        "mbconv",
        "Tan et al. 2019, MnasNet, CVPR",
        "mnasnet",
        published=Published(3_887_038, 0, 312e6, 0.01, "pytorchcv; Tan et al. 2019, table 1"),
    ),
    family(
        "mnasnet-b1",
        "mbconv",
        "Tan et al. 2019, MnasNet, CVPR",
        "mnasnet",
        published=Published(4_383_312, 0, 315e6, 0.01, "torchvision; Tan et al. 2019"),
    ),
    family(
        "proxyless-mobile",
        "mbconv",
        "Cai et al. 2019, ProxylessNAS, ICLR",
        "proxylessnas",
        published=Published(4_080_512, 0, 320e6, 0.01, "pytorchcv; Cai et al. 2019, repository"),
    ),
    family(
        "efficientnet-b0",
        "mbconv",
        "Tan and Le 2019, EfficientNet, ICML",
        "efficientnet",
        published=Published(5_288_548, 0, 390e6, 0.02, "torchvision; Tan and Le 2019, table 2"),
    ),
    family(
        "ghostnet",
        "ghostnet",
        "Han et al. 2020, GhostNet, CVPR",
        "ghostnet",
        published=Published(5_180_840, 0.001, 141e6, 0.01, "pytorchcv; Han et al. 2020"),
    ),
    family(
        "regnetx-400mf",
        "residual",
        "Radosavovic et al. 2020, Designing Network Design Spaces, CVPR",
        "regnet",
        published=Published(
            5_157_512, 0, 400e6, 0.01, "pytorchcv; Radosavovic et al. 2020, appendix"
        ),
    ),
    family(
        "resnet18",
        "residual",
        "He et al. 2016, Deep Residual Learning, CVPR",
        "resnet",
        published=Published(11_689_512, 0, 1814e6, 0.001, "torchvision"),
    ),
    family(
        "xception",
        "residual",
        "Chollet 2017, Xception, CVPR",
        "xception",
        "inception",
        resolution=299,
        published=Published(22_855_952, 0, 8400e6, 0.01, "Chollet 2017, table 3; pytorchcv"),
    ),
    family(
        "nasbench201",
        "nasbench201",
        "Dong and Yang 2020, NAS-Bench-201, ICLR",
        "nasbench",
        resolution=32,
        drawn=True,
    ),
    family(
        "nin-imagenet",
        "classic",
        "Lin et al. 2014, Network In Network, ICLR",
        "network-in-network",
        published=Published(7.6e6, 0.01, 1100e6, 0.01, "29 MB in Caffe's model zoo"),
    ),
    family(
        "nin-cifar",
        "classic",
        "Lin et al. 2014, Network In Network, ICLR",
        "network-in-network",
        resolution=32,
        published=Published(966_986, 0, 222.97e6, 0.01, "pytorchcv"),
    ),
    family(
        "darknet19",
        "classic",
        "Redmon and Farhadi 2017, YOLO9000, CVPR",
        "darknet",
        published=Published(
            20_842_376, 0, 5_580 / 2 * 1e6, 0.01, "pytorchcv; 5.58 billion operations in the paper"
        ),
    ),
    family(
        "repvgg-a0",
        "classic",
        "Ding et al. 2021, RepVGG, CVPR",
        "repvgg",
        "vgg",
        published=Published(8.30e6, 0.01, 1360e6, 0.01, "Ding et al. 2021, table 4: 1.4 B"),
    ),
    family(
        "squeezenet",
        "classic",
        "Iandola et al. 2016, SqueezeNet, arXiv:1602.07360",
        "squeezenet",
        published=Published(1_235_496, 0, 349e6, 0.01, "torchvision"),
    ),
    family(
        "shufflenet-v2",
        "shufflenet",
        "Ma et al. 2018, ShuffleNet V2, ECCV",
        "shufflenet",
        published=Published(2_278_604, 0, 146e6, 0.01, "torchvision; Ma et al. 2018, table 8"),
    ),
    family(
        "vovnet39",
        "vovnet",
        "Lee et al. 2019, VoVNet, CVPR workshops",
        "vovnet",
        published=Published(22_600_296, 0, 7086e6, 0.01, "pytorchcv"),
    ),
    family(
        "vovnet27-slim",
        "vovnet",
        "Lee et al. 2019, VoVNet, CVPR workshops",
        "vovnet",
        published=Published(3_525_736, 0, None, 0, "pytorchcv asserts parameters only"),
    ),
    family("synthetic", "synthetic", "drawn at random; no publication", "synthetic", drawn=True),
)
