"""The table of families: every catalogue in one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from latfarm_controller.zoo import (
    catalogue_cnn,
    catalogue_detectors,
    catalogue_mobile,
    catalogue_transformers,
)
from latfarm_controller.zoo.family import Family

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
