"""A campaign that starts from the bundle of a sibling platform: which bundle, and whether it fits.

nn-Meter's Table 11 shows that predictors of one GPU cannot be used unchanged for another GPU of its
family (0 to 100 % of latencies within 10 %), while predictors built anew for it can (99.0 %). Here
is a way between the two: the sibling's latencies choose what to measure, and a few measurements of
the new platform say how to correct the sibling's latencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import BundleError
from pydantic import Field

from latfarm_controller.campaigns.options import CampaignOptions
from latfarm_controller.errors import UsageError
from latfarm_controller.platform_name import PlatformName

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling
    from latfarm_predictors.predict.predictor import PlatformPredictor


class StartedFrom(CampaignOptions):
    """The bundle that a campaign starts from.

    A campaign that resumes after a crash must ask the same questions again. So the bundle's name,
    which contains its platform and its digest, must still be that of the file.

    Attributes:
        path: the bundle's file.
        bundle: the bundle's name.
    """

    path: str = Field(min_length=1)
    bundle: str = Field(min_length=1)

    @property
    def platform(self) -> str:
        """The sibling platform, which is part of the bundle's name."""
        return self.bundle.rpartition("@")[0]

    def to_json(self) -> dict[str, str]:
        """Name and platform for outcomes and provenance, where the path would have no meaning."""
        return {"bundle": self.bundle, "platform": self.platform}


def named(path: Path, platform: str) -> StartedFrom:
    """The bundle at `path` with its name, if a campaign on `platform` can start from it.

    Raises:
        UsageError: the bundle is missing, damaged or of another version, or its platform computes
            with another element type or on another kind of device.
    """
    return StartedFrom(path=str(path.absolute()), bundle=opened(path, platform).bundle)


def opened(path: Path, platform: str, bundle: str = "") -> PlatformPredictor:
    """The predictor of the bundle at `path`.

    Args:
        path: the bundle's file.
        platform: the platform of the campaign that starts from it.
        bundle: the name that the bundle must have; empty: any.

    Raises:
        UsageError: the bundle is missing, damaged or of another version, has another name, or its
            platform computes with another element type or on another kind of device.
    """
    from latfarm_predictors.bundle import load_bundle

    if not path.exists():
        raise UsageError(f"{path}: no such bundle to start from; `latfarm bundle` lists them")
    try:
        predictor = load_bundle(path)
    except BundleError as error:
        raise UsageError(f"{path}: cannot start from this bundle: {error}") from error
    if bundle and predictor.bundle != bundle:
        raise UsageError(
            f"{path}: is {predictor.bundle} now, but the campaign started from {bundle}"
        )
    _check_alike(predictor.platform, platform)
    return predictor


def sibling_of(chosen: StartedFrom | None, platform: str) -> Sibling | None:
    """The sibling whose latencies a campaign builds on; None where it starts from no bundle.

    Raises:
        UsageError: see `opened`.
    """
    if chosen is None:
        return None
    from latfarm_predictors.models.sibling import Sibling

    return Sibling.of(opened(Path(chosen.path), platform, chosen.bundle).models)


def predictor_of(config: Mapping[str, Any], platform: str) -> PlatformPredictor | None:
    """The predictor that a campaign's stored configuration starts from; None where there is none.

    Raises:
        UsageError: see `opened`.
    """
    given = config.get("started_from")
    if given is None:
        return None
    chosen = StartedFrom.model_validate(given)
    return opened(Path(chosen.path), platform, chosen.bundle)


def _check_alike(sibling: str, platform: str) -> None:
    """Refuse a sibling whose name says another element type or another kind of device."""
    if sibling == platform:
        return
    left, right = PlatformName.parse(sibling), PlatformName.parse(platform)
    if left.dtype and right.dtype:
        if left.dtype != right.dtype:
            raise UsageError(
                f"{platform} computes in {right.dtype}, {sibling} in {left.dtype}: "
                "start from a bundle of the same element type"
            )
        if (left.threads is None) != (right.threads is None):
            kinds = ["an accelerator" if one.threads is None else "a CPU" for one in (right, left)]
            raise UsageError(
                f"{platform} is {kinds[0]}, {sibling} {kinds[1]}: "
                "start from a bundle of the same kind of device"
            )
