"""From a training set to a bundle on disk. Reads no store, so it can run in another process."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.measurement import PROTOCOL_VERSION

from latfarm_controller.campaigns.sampling.sibling import predictor_of
from latfarm_controller.errors import UsageError
from latfarm_controller.training.data_revision import KEY, DataRevision, RowChanges
from latfarm_controller.training.energy import fit_energy
from latfarm_controller.training.foreign_rows import NO_FOREIGN, ForeignNetworks
from latfarm_controller.training.insight_trial import InsightWays, choose_way, samples_of
from latfarm_controller.training.pooling import other_scores
from latfarm_controller.training.training_set import TrainingSet
from latfarm_controller.zoo.families import lineage_of

if TYPE_CHECKING:
    from latfarm_predictors.predict.nnlp_trial import NNLPTrial
    from latfarm_predictors.predict.predictor import PlatformPredictor

OnProgress = Callable[[str, int, int], None]
"""Called with a stage of the training, the steps done, and all steps of that stage."""

_DISTRIBUTIONS = ("latfarm-controller", "latfarm-predictors", "numpy", "scikit-learn", "lightgbm")
"""Distributions whose versions a bundle's provenance tells."""


@dataclass(frozen=True)
class ParentModel:
    """The model that a training starts from.

    Attributes:
        number: its number among the models of its platform.
        path: its bundle.
        changes: what is new since its rows.
    """

    number: str
    path: Path
    changes: RowChanges


@dataclass(frozen=True)
class TrainingInputs:
    """All that the fit of a bundle needs; other processes can be given it.

    Attributes:
        platform: the platform.
        campaign_id: the campaign that is trained from.
        ways: its training sets, by what the times of kernels rest on.
        sibling_config: the sibling platform's bundle that the campaign started from, as its
            configuration names it; empty if there is none.
        seed: random seed of the fit.
        parent: the model that is trained further; None: everything is fitted.
        trial: why the times rest on what they do, where that was decided for the parent.
        frozen_set: name of the set of networks that were left out; empty if there is none.
        foreign: networks of other farms, where somebody asked to train with them.
        nnlp: whether graph networks are tried, which answer where they win; it needs torch.
    """

    platform: str
    campaign_id: str
    ways: InsightWays
    sibling_config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    parent: ParentModel | None = None
    trial: Mapping[str, Any] = field(default_factory=dict)
    frozen_set: str = ""
    foreign: ForeignNetworks = NO_FOREIGN
    nnlp: bool = False


def fit_bundle(
    inputs: TrainingInputs,
    path: Path,
    on_progress: OnProgress | None = None,
    pool_from: Path | None = None,
) -> PlatformPredictor:
    """Fit a predictor, and save it as a bundle at `path`.

    Args:
        inputs: what it is fitted to.
        path: file of the new bundle.
        on_progress: called with each stage, and how far it is.
        pool_from: the folder of all bundles. Those in use of other platforms, if their calibration
            networks were drawn alike, help to calibrate intervals. None: the platform's own
            networks calibrate alone.

    Returns:
        The predictor as loaded from its bundle.

    Raises:
        UsageError: the campaign measured too little, or the sibling's bundle is not usable.
        BundleError: the parent's bundle is damaged, or the new one cannot be written.
    """
    from latfarm_predictors.bundle import load_bundle, save_bundle

    with _one_thread():
        data, trial = choose_way(inputs.ways, inputs.seed)
    data = inputs.foreign.added_to(data)
    config = inputs.sibling_config
    sibling = predictor_of(config, inputs.platform) if config else None
    started_s = time.time()
    try:
        predictor = _fit(data, sibling, inputs, on_progress)
    except NotEnoughDataError as error:
        raise UsageError(
            f"campaign {inputs.campaign_id!r} measured too little to learn from: {error}"
        ) from error
    told = provenance(data, inputs.seed, started_s)
    told["insight"]["trial"] = dict(inputs.trial) or trial.to_json()
    told |= inputs.foreign.provenance()
    if inputs.frozen_set:
        told["frozen_set"] = inputs.frozen_set
    if inputs.parent is not None:
        told["parent"] = {
            "number": inputs.parent.number,
            "bundle": load_bundle(inputs.parent.path).bundle,
            "changed": inputs.parent.changes.sentence,
        }
    if pool_from is not None:
        predictor.correction.other_scores = other_scores(pool_from, inputs.platform, told)
    told |= _promised(predictor)
    if sibling is not None:
        told["started_from"] = {
            "bundle": sibling.bundle,
            "platform": sibling.platform,
            "groups": [n for n, model in predictor.models.stacks.items() if model.from_sibling],
        }
    save_bundle(predictor, path, told)
    return load_bundle(path)


def _promised(predictor: PlatformPredictor) -> dict[str, Any]:
    """What the provenance tells of a predictor's intervals, and of the corrector that was tried."""
    from latfarm_predictors.predict.predictor import DEFAULT_COVERAGE

    told: dict[str, Any] = {"guarantee": predictor.guarantee(DEFAULT_COVERAGE).to_json()}
    if predictor.shipping is not None:
        told["corrector"] = predictor.shipping.to_json()
    return told


def _fit(
    data: TrainingSet,
    sibling: PlatformPredictor | None,
    inputs: TrainingInputs,
    on_progress: OnProgress | None,
) -> PlatformPredictor:
    """Fit latencies, and energies where they were measured.

    Raises:
        NotEnoughDataError: there are too few kernels.
    """
    from latfarm_predictors.bundle import load_bundle
    from latfarm_predictors.predict.earlier_fit import EarlierFit
    from latfarm_predictors.predict.fitting import fit_predictor

    earlier = None
    parent = inputs.parent
    if parent is not None and not parent.changes.setting:
        earlier = EarlierFit(load_bundle(parent.path), parent.changes.families)
    with _one_thread():
        families = [replace(each, family=lineage_of(each.graph.name)) for each in data.networks]
        predictor = fit_predictor(
            samples_of(replace(data, networks=families)),
            seed=inputs.seed,
            on_progress=on_progress,
            sibling=sibling,
            earlier=earlier,
            nnlp=_nnlp_trial() if inputs.nnlp else None,
        )
        if earlier is not None and parent is not None and not parent.changes.energy:
            predictor.energy = earlier.predictor.energy
        else:
            predictor.energy = fit_energy(
                data.platform,
                data.rules,
                data.energy,
                data.call_overhead_ms,
                seed=inputs.seed,
                on_progress=on_progress,
            )
        predictor.slow_core = data.slow_core
    return predictor


def _nnlp_trial() -> NNLPTrial:
    """How graph networks are tried; torch is imported when the first of them is trained."""
    from latfarm_predictors.gnn.learning.fit import fit
    from latfarm_predictors.predict.nnlp_trial import NNLPTrial

    return NNLPTrial(fit)


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
        "campaigns": list(data.campaigns),
        KEY: DataRevision.of(data).to_json(),
        "fingerprint": data.fingerprint,
        "boards": list(data.board_ids),
        "kernels": len({sample.kernel.kernel_id for sample in data.kernels}),
        "kernel_measurements": len(data.kernels),
        "networks": [sample.graph.name for sample in data.networks],
        "network_hashes": [network_hash_of(sample.graph) for sample in data.networks],
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
