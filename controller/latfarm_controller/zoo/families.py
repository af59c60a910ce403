"""The table of families: where each is published, from whom it descends, and what builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import cast

from latfarm_predictors.graph import Graph
from latfarm_predictors.graph_builder import GraphBuilder

from latfarm_controller.zoo.design import Design

Builder = Callable[[GraphBuilder, str, Design], str]

_PACKAGE = "latfarm_controller.zoo"


@dataclass(frozen=True, slots=True)
class Family:
    """A family of networks.

    `lineage` names the lines that it belongs to: a campaign that must not see any relative of a
    network leaves out all families that share a line with it. `drawn` families make another
    network from every seed. `resolution` is that of the publication, in pixels.
    """

    name: str
    source: str
    lineage: frozenset[str]
    module: str
    function: str
    resolution: int = 224
    drawn: bool = False

    def build(
        self,
        *,
        width: float = 1.0,
        resolution: int | None = None,
        batch: int = 1,
        seed: int = 0,
        design: Design | None = None,
    ) -> Graph:
        """A network of this family; `design` overrides width and seed.

        Raises:
            GraphError: the resolution is too small for the network.
        """
        found = Design(width, seed=seed) if design is None else design
        size = self.resolution if resolution is None else resolution
        builder = cast(Builder, getattr(import_module(f"{_PACKAGE}.{self.module}"), self.function))
        name = self.name
        if self.drawn:
            name += f"@{found.seed}"
        if found.width != 1.0:
            name += f"-x{found.width:.3g}"
        if size != self.resolution:
            name += f"-{size}px"
        b = GraphBuilder(name)
        x = b.input((batch, 3, size, size))
        return b.build([builder(b, x, found)])


def _family(
    name: str,
    module: str,
    source: str,
    *lineage: str,
    resolution: int = 224,
    drawn: bool = False,
) -> Family:
    function = name.replace("-", "_")
    return Family(name, source, frozenset(lineage), module, function, resolution, drawn)


_ALL = (
    _family(
        "mobilenet-v1",
        "mobilenet",
        "Howard et al. 2017, MobileNets, arXiv:1704.04861",
        "mobilenet",
    ),
    _family("mobilenet-v2", "mobilenet", "Sandler et al. 2018, MobileNetV2, CVPR", "mobilenet"),
    _family(
        "mobilenet-v3-large",
        "mobilenet",
        "Howard et al. 2019, Searching for MobileNetV3, ICCV",
        "mobilenet",
    ),
    _family(
        "mobilenet-v3-small",
        "mobilenet",
        "Howard et al. 2019, Searching for MobileNetV3, ICCV",
        "mobilenet",
    ),
    _family("mobileone-s0", "mobilenet", "Vasu et al. 2023, MobileOne, CVPR", "mobileone"),
    _family("mnasnet-a1", "mbconv", "Tan et al. 2019, MnasNet, CVPR", "mnasnet"),
    _family("mnasnet-b1", "mbconv", "Tan et al. 2019, MnasNet, CVPR", "mnasnet"),
    _family("proxyless-mobile", "mbconv", "Cai et al. 2019, ProxylessNAS, ICLR", "proxylessnas"),
    _family("efficientnet-b0", "mbconv", "Tan and Le 2019, EfficientNet, ICML", "efficientnet"),
    _family("ghostnet", "ghostnet", "Han et al. 2020, GhostNet, CVPR", "ghostnet"),
    _family(
        "regnetx-400mf",
        "residual",
        "Radosavovic et al. 2020, Designing Network Design Spaces, CVPR",
        "regnet",
    ),
    _family("resnet18", "residual", "He et al. 2016, Deep Residual Learning, CVPR", "resnet"),
    _family(
        "xception",
        "residual",
        "Chollet 2017, Xception, CVPR",
        "xception",
        "inception",
        resolution=299,
    ),
    _family(
        "nasbench201",
        "nasbench201",
        "Dong and Yang 2020, NAS-Bench-201, ICLR",
        "nasbench",
        resolution=32,
        drawn=True,
    ),
    _family(
        "nin-imagenet", "classic", "Lin et al. 2014, Network In Network, ICLR", "network-in-network"
    ),
    _family(
        "nin-cifar",
        "classic",
        "Lin et al. 2014, Network In Network, ICLR",
        "network-in-network",
        resolution=32,
    ),
    _family("darknet19", "classic", "Redmon and Farhadi 2017, YOLO9000, CVPR", "darknet"),
    _family("repvgg-a0", "classic", "Ding et al. 2021, RepVGG, CVPR", "repvgg", "vgg"),
    _family(
        "squeezenet", "classic", "Iandola et al. 2016, SqueezeNet, arXiv:1602.07360", "squeezenet"
    ),
    _family("shufflenet-v2", "shufflenet", "Ma et al. 2018, ShuffleNet V2, ECCV", "shufflenet"),
    _family("vovnet39", "vovnet", "Lee et al. 2019, VoVNet, CVPR workshops", "vovnet"),
    _family("vovnet27-slim", "vovnet", "Lee et al. 2019, VoVNet, CVPR workshops", "vovnet"),
    _family("synthetic", "synthetic", "drawn at random; no publication", "synthetic", drawn=True),
)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})
