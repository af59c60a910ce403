"""A campaign that starts from a sibling's bundle: which one, and whether it may.

nn-Meter, Table 11: predictors of one GPU are of no use as they are for another of its family (0 to
100 % within 10 %), and those rebuilt for it are (99.0 %). Between the two: the sibling's latencies
choose what to measure, and a few measurements of the new board say how to change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import BundleError
from pydantic import Field

from latfarm_controller.campaigns.options import CampaignOptions
from latfarm_controller.campaigns.platform_name import PlatformName
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling
    from latfarm_predictors.predict.predictor import PlatformPredictor


class StartedFrom(CampaignOptions):
    """A bundle: its file, and its name, which tells platform and digest.

    Nothing but that very bundle will do: a campaign that goes on after a crash asks the same
    questions or none.
    """

    path: str = Field(min_length=1)
    bundle: str = Field(min_length=1)

    @property
    def platform(self) -> str:
        """The sibling's platform, as the bundle's name tells it."""
        return self.bundle.rpartition("@")[0]

    def to_json(self) -> dict[str, str]:
        """For outcomes and provenance: a path would say nothing elsewhere."""
        return {"bundle": self.bundle, "platform": self.platform}


def named(path: Path, platform: str) -> StartedFrom:
    """The bundle at a path, named, if a campaign on `platform` can start from it.

    Raises:
        UsageError: it is missing, damaged, of another version, or its platform computes with
            another element type or on another kind of device.
    """
    return StartedFrom(path=str(path.absolute()), bundle=opened(path, platform).bundle)


def opened(path: Path, platform: str, bundle: str = "") -> PlatformPredictor:
    """The sibling's predictor.

    Raises:
        UsageError: as `named`; or it is not the bundle of that name.
    """
    from latfarm_predictors.bundle import load_bundle

    if not path.exists():
        raise UsageError(f"{path}: no such bundle to start from; `latfarm bundle` lists them")
    try:
        predictor = load_bundle(path)
    except BundleError as error:
        raise UsageError(f"cannot start from it: {error}") from error
    if bundle and predictor.bundle != bundle:
        raise UsageError(
            f"{path}: is {predictor.bundle} now, and the campaign started from {bundle}"
        )
    _check_alike(predictor.platform, platform)
    return predictor


def sibling_of(chosen: StartedFrom | None, platform: str) -> Sibling | None:
    """What a campaign knows of its sibling; None where it starts from nothing.

    Raises:
        UsageError: see `opened`.
    """
    if chosen is None:
        return None
    from latfarm_predictors.models.sibling import Sibling

    return Sibling.of(opened(Path(chosen.path), platform, chosen.bundle).models)


def predictor_of(config: Mapping[str, Any], platform: str) -> PlatformPredictor | None:
    """The sibling's predictor of a campaign's stored configuration; None where there is none.

    Raises:
        UsageError: see `opened`.
    """
    given = config.get("started_from")
    if given is None:
        return None
    chosen = StartedFrom.model_validate(given)
    return opened(Path(chosen.path), platform, chosen.bundle)


def _check_alike(sibling: str, platform: str) -> None:
    """Where both names tell (see `offers.offer`), they must tell the same."""
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
