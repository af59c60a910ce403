"""Trains NNLP (NNLQP, section 6.2): one platform, several at once, or transfer from a trained one.

The networks that decide when training ends, and those that intervals rest on, are parts of what is
given here. Networks that judge a model are never given: the paper's public code picks its best
epoch on the test set, which this cannot do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from latfarm_predictors.features.table import Rows
from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.early_stopping import EarlyStopping
from latfarm_predictors.gnn.labelled import (
    Labelled,
    by_platform,
    check_labels,
    latencies,
    scales,
)
from latfarm_predictors.gnn.learning.device import chosen_device
from latfarm_predictors.gnn.learning.steps import TrainingRun
from latfarm_predictors.gnn.nnlp import NNLP, PlatformHead, scores_of
from latfarm_predictors.gnn.parameters import Single, first_values, is_head, shapes
from latfarm_predictors.gnn.scaling import Scaling
from latfarm_predictors.gnn.shares import FoldShares, shares_of

LEAST_NETWORKS = 4
"""Smallest number of measured networks that training takes."""


@dataclass(frozen=True)
class EpochReport:
    """What one epoch brought.

    Attributes:
        epoch: its number, from 1.
        epochs: largest number of epochs.
        loss: mean loss on the training networks.
        validation_mape: mean absolute relative error on the validation networks; None without any.
        best_mape: the least so far; None without validation networks.
        elapsed_s: seconds since training began.
    """

    epoch: int
    epochs: int
    loss: float
    validation_mape: float | None
    best_mape: float | None
    elapsed_s: float


OnEpoch = Callable[[EpochReport], None]
"""Is told what each epoch brought; an error that it raises ends training."""


def fit(
    rows: Sequence[Labelled],
    config: NNLPConfig,
    *,
    device: str = "",
    on_epoch: OnEpoch | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> NNLP:
    """Train a network from its first values, with a head for each platform of the rows.

    Args:
        rows: measured networks.
        config: the network and how it is trained.
        device: on which torch computes; empty: a GPU where there is one.
        on_epoch: is told the progress.
        provenance: where the rows come from; it is kept in the model.

    Raises:
        NoTorchError: torch is not installed.
        NotEnoughDataError: there are fewer than `LEAST_NETWORKS` rows.
        ValueError: a latency is not positive and finite.
    """
    check_labels(rows, LEAST_NETWORKS)
    parts = _parts(rows, config)
    train = [rows[at] for at in parts.train]
    scaling = Scaling.of([row.graph for row in train], log_sizes=config.log_sizes)
    heads = scales(rows) | scales(train)
    first = first_values(config, scaling.columns, heads)
    start = NNLP(config, scaling, first, {n: PlatformHead(s) for n, s in heads.items()})
    return _trained(start, rows, parts, device, on_epoch, provenance or {})


def transfer(
    model: NNLP,
    rows: Sequence[Labelled],
    config: NNLPConfig | None = None,
    *,
    device: str = "",
    on_epoch: OnEpoch | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> NNLP:
    """Fine-tune a trained model on new structures or a new platform (Fig. 5).

    The encoder and the heads of known platforms start from the model; the head of a new platform
    starts from first values. Features keep the model's scale. Heads of platforms that have no row
    here are dropped, because the encoder that they read changes.

    Args:
        model: the trained model.
        rows: measured networks, of a new structure or on a new platform.
        config: how to train now; its network must be the model's. None: as the model was trained.
        device: on which torch computes; empty: a GPU where there is one.
        on_epoch: is told the progress.
        provenance: where the rows come from; the model's own provenance is kept as its parent's.

    Raises:
        NoTorchError: torch is not installed.
        NotEnoughDataError: there are fewer than `LEAST_NETWORKS` rows.
        ValueError: a latency is not positive and finite, or the network is not the model's.
    """
    check_labels(rows, LEAST_NETWORKS)
    config = config or model.config
    heads = scales(rows)
    wanted = shapes(config, model.scaling.columns, heads)
    first = first_values(config, model.scaling.columns, heads)
    for name, value in model.parameters.items():
        if name in wanted and wanted[name] != value.shape:
            raise ValueError(f"{name} has shape {value.shape} in the model, not {wanted[name]}")
    shared = [name for name in wanted if not is_head(name)]
    if missing := [name for name in shared if name not in model.parameters]:
        raise ValueError(f"the model has no parameter {missing[0]}: its network is another one")
    first |= {name: value for name, value in model.parameters.items() if name in wanted}
    known = {
        name: PlatformHead(model.heads[name].scale_ms if name in model.heads else scale)
        for name, scale in heads.items()
    }
    start = NNLP(config, model.scaling, first, known)
    told = {**(provenance or {}), "parent": dict(model.provenance)}
    return _trained(start, rows, _parts(rows, config), device, on_epoch, told)


def _parts(rows: Sequence[Labelled], config: NNLPConfig) -> FoldShares:
    names = [row.name for row in rows]
    return shares_of(names, config.validation_share, config.calibration_share, config.seed)


def _trained(
    start: NNLP,
    rows: Sequence[Labelled],
    parts: FoldShares,
    device: str,
    on_epoch: OnEpoch | None,
    provenance: Mapping[str, Any],
) -> NNLP:
    """Train from given first values, and calibrate the intervals of each platform."""
    chosen = chosen_device(device)
    began_s = time.monotonic()
    values, epochs, best = _best_parameters(start, rows, parts, chosen, on_epoch)
    told = {
        **provenance,
        "networks": {name: len(part) for name, part in vars(parts).items()},
        "epochs": epochs,
        "best_validation_mape": best,
        "device": chosen,
        "training_s": round(time.monotonic() - began_s, 3),
    }
    model = replace(start, parameters=values, provenance=told)
    return replace(model, heads=_calibrated(model, _some(rows, parts.calibration)))


def _best_parameters(
    start: NNLP, rows: Sequence[Labelled], parts: FoldShares, device: str, on_epoch: OnEpoch | None
) -> tuple[dict[str, Single], int, float | None]:
    """The parameters of the epoch with the least validation error, and of the last without one.

    Returns:
        The parameters, the number of epochs, and the least error; None without validation networks.
    """
    config = start.config
    scales_ms = {name: head.scale_ms for name, head in start.heads.items()}
    run = TrainingRun(config, start.scaling, scales_ms, start.parameters, device)
    train, judges = run.ready(_some(rows, parts.train)), run.ready(_some(rows, parts.validation))
    stopping = EarlyStopping(config.patience)
    best: dict[str, Single] | None = None
    began_s, epoch = time.monotonic(), 0
    while epoch < config.epochs and not (judges.rows and stopping.ended):
        epoch += 1
        loss = run.epoch(train, epoch)
        error = run.error(judges) if judges.rows else None
        if error is not None and stopping.told(error):
            best = run.values()
        if on_epoch is not None:
            least = stopping.best if judges.rows else None
            passed_s = time.monotonic() - began_s
            on_epoch(EpochReport(epoch, config.epochs, loss, error, least, passed_s))
    return best or run.values(), epoch, stopping.best if best else None


def _calibrated(model: NNLP, rows: Sequence[Labelled]) -> dict[str, PlatformHead]:
    """The heads of a model with the scores of calibration networks."""
    heads = dict(model.heads)
    for platform, places in by_platform(rows).items():
        some = [rows[at] for at in places]
        predicted_ms = model.predict([row.graph for row in some], platform)
        scores = scores_of(predicted_ms, latencies(some))
        heads[platform] = replace(heads[platform], scores=scores)
    return heads


def _some(rows: Sequence[Labelled], places: Rows) -> list[Labelled]:
    return [rows[at] for at in places]
