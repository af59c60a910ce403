"""The table of all families, from the catalogues of all folders."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from latfarm_controller.zoo.cnn import catalogue as catalogue_cnn
from latfarm_controller.zoo.detectors import catalogue as catalogue_detectors
from latfarm_controller.zoo.family import Family
from latfarm_controller.zoo.mobile import catalogue as catalogue_mobile
from latfarm_controller.zoo.transformers import catalogue as catalogue_transformers

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        found.name: found
        for found in (
            *catalogue_mobile.ALL,
            *catalogue_cnn.ALL,
            *catalogue_detectors.ALL,
            *catalogue_transformers.ALL,
        )
    }
)
"""All families by their names, in the order of the catalogues."""


def lineage_of(network: str) -> str:
    """The lineage of a network of the zoo, by the name of its graph; empty if it has none.

    Names begin with that of the family, as in `resnet18-calibration-3`, `resnet18-17` or
    `synthetic@4`. A family of several lineages belongs to the first by name.
    """
    named = [
        name for name in FAMILIES if network == name or network.startswith((f"{name}-", f"{name}@"))
    ]
    if not named:
        return ""
    longest = max(named, key=len)
    return min(FAMILIES[longest].lineage, default=longest)
