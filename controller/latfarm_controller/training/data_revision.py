"""Which rows a model was trained on: a digest for each family of kernels, and for the rest.

The digests are made of the samples that training gets, so they change exactly when rows are added,
replaced or discarded that matter to it. Two trainings from the same rows have the same revision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample, NetworkSample

from latfarm_controller.training.energy import EnergySet
from latfarm_controller.training.training_set import TrainingSet

KEY = "data"
"""Key of the revision in a bundle's provenance."""
PREFIX = "r"
"""First character of the name of a revision, which tells it from the number of a model."""
_LENGTH = 12
"""Number of hexadecimal digits of a digest."""


@dataclass(frozen=True)
class DataRevision:
    """The rows that a model was trained on.

    Attributes:
        families: a digest of the samples of each family of kernels, by its name.
        networks: a digest of the networks that calibrated it.
        energy: a digest of the energies.
        setting: a digest of what touches every kernel: fusion rules, the overhead of a call, the
            cost of transfers, the correction for a slow core, and kernels inside networks.
    """

    families: Mapping[str, str] = field(default_factory=dict)
    networks: str = ""
    energy: str = ""
    setting: str = ""

    @staticmethod
    def of(data: TrainingSet) -> DataRevision:
        """The revision of a training set."""
        families: dict[str, list[object]] = {}
        for sample in data.kernels:
            families.setdefault(workload(sample.kernel).family, []).append(_kernel(sample))
        setting = (
            data.rules.to_json(),
            data.call_overhead_ms,
            data.transfer_ms_per_mb,
            data.slow_core.to_json(),
            data.fingerprint,
            [[_kernel(sample) for sample in network] for network in data.places],
        )
        return DataRevision(
            {name: _digest(sorted(map(repr, rows))) for name, rows in sorted(families.items())},
            _digest(sorted(repr(_network(sample)) for sample in data.networks)),
            _digest(_energies(data.energy)),
            _digest(setting),
        )

    @property
    def name(self) -> str:
        """The name of the revision, for people and for `latfarm train --since`."""
        return PREFIX + _digest([sorted(self.families.items()), *self._others])

    @property
    def _others(self) -> tuple[str, str, str]:
        return self.networks, self.energy, self.setting

    def changed_since(self, earlier: DataRevision) -> RowChanges:
        """What is new, has changed or is gone since an earlier revision."""
        names = {*self.families, *earlier.families}
        touched = {n for n in names if self.families.get(n) != earlier.families.get(n)}
        return RowChanges(
            frozenset(touched),
            self.networks != earlier.networks,
            self.energy != earlier.energy,
            self.setting != earlier.setting,
        )

    def to_json(self) -> dict[str, Any]:
        """The revision as plain JSON types, for a bundle's provenance."""
        return {"revision": self.name, **asdict(self)}

    @staticmethod
    def told_by(provenance: Mapping[str, Any]) -> DataRevision | None:
        """The revision that a bundle's provenance tells; None in bundles of older versions."""
        told = provenance.get(KEY)
        if not isinstance(told, dict) or not isinstance(told.get("families"), dict):
            return None
        families = {str(name): str(digest) for name, digest in told["families"].items()}
        rest = (str(told.get(name, "")) for name in ("networks", "energy", "setting"))
        return DataRevision(families, *rest)


@dataclass(frozen=True)
class RowChanges:
    """What changed between two revisions.

    Attributes:
        families: the families of kernels that have other samples.
        networks: whether the networks that calibrate have changed.
        energy: whether the energies have changed.
        setting: whether something changed that touches every kernel.
    """

    families: frozenset[str] = frozenset()
    networks: bool = False
    energy: bool = False
    setting: bool = False

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return bool(self.families) or self.networks or self.energy or self.setting

    def __or__(self, other: RowChanges) -> RowChanges:
        """What changed by either."""
        return RowChanges(
            self.families | other.families,
            self.networks or other.networks,
            self.energy or other.energy,
            self.setting or other.setting,
        )

    @property
    def sentence(self) -> str:
        """What changed, for people."""
        told = [", ".join(sorted(self.families))] if self.families else []
        told += ["calibration networks"] if self.networks else []
        told += ["energies"] if self.energy else []
        told += ["what touches every kernel"] if self.setting else []
        return "; ".join(told) or "nothing"


def _kernel(sample: KernelSample) -> tuple[object, ...]:
    return (
        sample.kernel.kernel_id,
        sample.kernel.device,
        sample.latency_ms,
        sample.mad_ms,
        sample.cold_ms,
        sample.insight,
        sample.network,
    )


def _network(sample: NetworkSample) -> tuple[object, ...]:
    return hash_of(sample.graph), sample.latency_ms, sample.mad_ms


def _energies(energy: EnergySet) -> list[str]:
    """The samples of energies as texts, in an order of their own."""
    kernels = [
        repr((s.kernel.kernel_id, s.energy_mj, s.spread_mj, s.latency_ms, s.insight))
        for s in energy.kernels
    ]
    whole = [repr((hash_of(s.graph), s.energy_mj, s.spread_mj)) for s in energy.networks]
    return [energy.rail, repr(energy.call_overhead_mj), *sorted(kernels), *sorted(whole)]


def _digest(value: object) -> str:
    """The digest of plain values; numbers are told exactly."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LENGTH]
