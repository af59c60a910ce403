"""Training: from the measurements in the store to a bundle on disk."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.measurement import PROTOCOL_VERSION

from latfarm_controller.campaigns.sampling.sibling import predictor_of
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import Store
from latfarm_controller.training.bundles import choose, next_path
from latfarm_controller.training.energy import fit_energy
from latfarm_controller.training.gather import bases
from latfarm_controller.training.insight_trial import try_insights
from latfarm_controller.training.pooling import other_scores
from latfarm_controller.training.training_set import TrainingSet

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

OnProgress = Callable[[str, int, int], None]
"""Called with a stage of the training, the steps done, and all steps of that stage."""

_DISTRIBUTIONS = ("latfarm-controller", "latfarm-predictors", "numpy", "scikit-learn", "lightgbm")
"""Distributions whose versions a bundle's provenance tells."""


def train(
    store: Store,
    platform: str,
    campaign_id: str,
    path: Path,
    *,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    pool_from: Path | None = None,
) -> PlatformPredictor:
    """Fit a predictor to a campaign, and to those it adds to, and save it as a bundle at `path`.

    Args:
        store: holds the measurements.
        platform: the platform.
        campaign_id: the campaign.
        path: file of the new bundle.
        seed: random seed of the fit.
        on_progress: called with each stage, and how far it is.
        pool_from: the folder of all bundles. The newest ones of other platforms, if their
            calibration networks were drawn alike, help to calibrate intervals. None: the
            platform's own networks calibrate alone.

    Returns:
        The predictor as loaded from its bundle.

    Raises:
        UsageError: as `gather`, or the campaign measured too little.
        StoreError: the measurements cannot be read, or the bundle cannot be written.
    """
    from latfarm_predictors.bundle import load_bundle, save_bundle
    from latfarm_predictors.predict.predictor import DEFAULT_COVERAGE

    with _one_thread():
        data, trial = try_insights(store, platform, campaign_id, seed=seed)
    sibling = _sibling_of(store, platform, campaign_id)
    started_s = time.time()
    try:
        predictor = _fit(data, sibling, seed, on_progress)
    except NotEnoughDataError as error:
        raise UsageError(
            f"campaign {campaign_id!r} measured too little to learn from: {error}"
        ) from error
    told = provenance(data, seed, started_s)
    told["insight"]["trial"] = trial.to_json()
    if pool_from is not None:
        predictor.correction.other_scores = other_scores(pool_from, platform, told)
    promised = predictor.correction.calibration.guarantee(DEFAULT_COVERAGE)
    told["guarantee"] = promised.to_json()
    if sibling is not None:
        told["started_from"] = {
            "bundle": sibling.bundle,
            "platform": sibling.platform,
            "groups": [n for n, model in predictor.models.stacks.items() if model.from_sibling],
        }
    save_bundle(predictor, path, told)
    return load_bundle(path)


def _fit(
    data: TrainingSet, sibling: PlatformPredictor | None, seed: int, on_progress: OnProgress | None
) -> PlatformPredictor:
    """Fit latencies, and energies where they were measured.

    Raises:
        NotEnoughDataError: there are too few kernels.
    """
    from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor

    with _one_thread():
        samples = PlatformSamples(
            data.platform,
            data.rules,
            data.kernels,
            data.networks,
            call_overhead_ms=data.call_overhead_ms,
            transfer_ms_per_mb=data.transfer_ms_per_mb,
            places=data.places,
        )
        predictor = fit_predictor(samples, seed=seed, on_progress=on_progress, sibling=sibling)
        predictor.energy = fit_energy(
            data.platform,
            data.rules,
            data.energy,
            data.call_overhead_ms,
            seed=seed,
            on_progress=on_progress,
        )
        predictor.slow_core = data.slow_core
    return predictor


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit linear algebra to one thread.

    There are only hundreds of rows: more threads would wait for each other on a busy host.
    """
    # Imported before the limit is set, because it only reaches libraries that are loaded.
    import lightgbm  # noqa: F401
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        yield


def _sibling_of(store: Store, platform: str, campaign_id: str) -> PlatformPredictor | None:
    """The sibling platform's predictor that a campaign, or one that it adds to, started from."""
    for name in bases(store, campaign_id):
        record = store.get_campaign(name)
        found = None if record is None else predictor_of(record.config, platform)
        if found is not None:
            return found
    return None


def retrain(
    config: ControllerConfig, store: Store, platform: str, *, on_progress: OnProgress | None = None
) -> Path:
    """Make a platform's bundle again from the measurements that its newest bundle was made from.

    Returns:
        The path of the new bundle.

    Raises:
        UsageError: there is no bundle, or its measurements are not in this store.
        BundleError: the newest bundle is damaged.
    """
    from latfarm_predictors.bundle import read_provenance

    told = read_provenance(choose(config.bundles_dir, platform))
    path = next_path(config.bundles_dir, platform)
    campaign = str(told.get("campaign", ""))
    if store.get_campaign(campaign) is None:
        raise UsageError(
            f"the newest bundle of {platform} was made elsewhere: its campaign "
            f"{campaign or '(not told)'} is not in {config.store_file}; to make one here, run: "
            f"latfarm characterize --platform {platform}"
        )
    train(
        store,
        platform,
        campaign,
        path,
        seed=int(told.get("seed", 0)),
        on_progress=on_progress,
        pool_from=config.bundles_dir,
    )
    return path


def provenance(data: TrainingSet, seed: int, trained_at_s: float) -> dict[str, Any]:
    """What a bundle was made from, as plain JSON types.

    Args:
        data: the training set.
        seed: the random seed of the fit.
        trained_at_s: Unix time of the fit in seconds.
    """
    return {
        "platform": data.platform,
        "campaign": data.campaign_id,
        "fingerprint": data.fingerprint,
        "boards": list(data.board_ids),
        "kernels": len({sample.kernel.kernel_id for sample in data.kernels}),
        "kernel_measurements": len(data.kernels),
        "networks": [sample.graph.name for sample in data.networks],
        "left_out": dict(data.left_out),
        "call_overhead_ms": data.call_overhead_ms,
        "transfer_ms_per_mb": data.transfer_ms_per_mb,
        "insight": dict(data.insight),
        "slow_core": data.slow_core.to_json(),
        "host_noise": data.host_noise.to_json(),
        "steadiness": dict(data.steadiness),
        "overruled": {"+".join(pair): seen.to_json() for pair, seen in data.overruled.items()},
        "protocol_version": PROTOCOL_VERSION,
        "calibration_draw": data.calibration_draw,
        "seed": seed,
        "trained_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(trained_at_s)),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        **data.energy.provenance(),
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
