"""Predictors of the literature, fitted to the same measurements, to stand beside ours.

Each is named in `BASELINES` and asked by `PlatformPredictor.predict_baseline`. Three kinds:

- of kernels: what a regressor says of each kernel under the platform's fusion rules, summed, and
  what a call and its transfers cost;
- of operators: the same without fusion, or by MNN's own fusion;
- of networks: see `models.network_model`, where predictors of whole graphs are added.

They are saved with a platform's predictor and read back when first asked for: who only predicts
pays nothing for them. Those of `RECIPES` are fitted when first asked for, to the measurements that
a predictor keeps (`Evidence`): their forests would make training slower, and a bundle larger,
several times over. That takes seconds, and scikit-learn; `keep_in` names where they are kept then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from types import MappingProxyType
from typing import Protocol, TypeVar

from latfarm_predictors.baselines.names import BASELINES, MNN
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.errors import NoBaselineError, NotEnoughDataError
from latfarm_predictors.features.mnn_backends import cpu
from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.files.bundle_state import DAMAGE
from latfarm_predictors.files.fitted_cache import FittedCache
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.published.analytic import Linear, Lookup
from latfarm_predictors.models.published.group_forests import GroupForests
from latfarm_predictors.models.published.mnn_cost import MnnCost
from latfarm_predictors.models.published.network_model import NETWORK_MODELS, NetworkModel, Totals
from latfarm_predictors.models.published.per_type import PerType
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.samples import NetworkSample, Training

__all__ = ["BASELINES", "Baselines", "KernelBaseline", "threads_of"]

Fitted = TypeVar("Fitted")


class KernelBaseline(Protocol):
    """What a baseline of kernels can do once fitted: see `models.base.Model`."""

    kind: str

    def predict(self, workloads: Table) -> tuple[Array, Array]:
        """Latency in ms and log-sigma, each of shape (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned."""
        ...


class Baselines:
    """The fitted baselines of a platform. Thread-safe once made.

    Args:
        kernels: by name; those of `OWN` and of `RECIPES` are none of them.
        networks: by name.
        seed: of those of `RECIPES`.
    """

    def __init__(
        self,
        kernels: Mapping[str, KernelBaseline] | None = None,
        networks: Mapping[str, NetworkModel] | None = None,
        seed: int = 0,
    ) -> None:
        self._kernels = dict(kernels or {})
        self._networks = dict(networks or {})
        self._seed = seed
        self._later: Callable[[], ModelState] | None = None
        self._per_type: dict[str, PerType] = {}
        self._kept: FittedCache | None = None
        self._busy = Lock()

    @staticmethod
    def fit(
        training: Training,
        rules: FusionRules,
        forests: Mapping[str, Forest],
        joined: Mapping[str, str],
        networks: Sequence[NetworkSample],
        *,
        platform: str = "",
        seed: int = 0,
    ) -> Baselines:
        """Fit all but those of `RECIPES`.

        Args:
            training: the measured kernels, 8 or more.
            rules: how the platform fuses ops.
            forests: by group, fitted already.
            joined: see `GroupForests`.
            networks: measured whole, all latencies positive and finite.
            platform: its name ends in its number of threads ("-4t"), which MNN's cost asks for.
            seed: same data and seed, same baselines.
        """
        table, latency = training.table, training.latency_ms
        kernels: dict[str, KernelBaseline] = {}
        if forests:
            kernels["forest"] = GroupForests(forests, joined)
        kernels["lookup"] = Lookup().fit(table, latency)
        backend = cpu(threads_of(platform))
        for name in MNN:
            model = MnnCost(backend, scaled=name == "mnn_cost_scaled")
            kernels[name] = model.fit(table, latency)
        whole: dict[str, NetworkModel] = {}
        for name, maker in NETWORK_MODELS.items():
            try:
                whole[name] = maker.make(rules).fit(networks)
            except NotEnoughDataError:
                continue  # `network` says so when asked
        return Baselines(kernels, whole, seed)

    @staticmethod
    def later(read: Callable[[], ModelState]) -> Baselines:
        """Baselines whose state `read` reads when the first of them is asked for."""
        baselines = Baselines()
        baselines._later = read
        return baselines

    def keep_in(self, kept: FittedCache) -> None:
        """Keep there what is fitted when first asked for, and look there before."""
        self._kept = kept

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are there, `OWN` and `RECIPES` left out."""
        self._read()
        return (*self._kernels, *self._networks)

    def kernel(self, name: str) -> KernelBaseline:
        """A baseline of kernels or of operators.

        Raises:
            NoBaselineError: it was not fitted, as in a bundle made by an older version.
            BundleError: what the bundle holds of them cannot be read.
        """
        self._read()
        return self._found(self._kernels, name)

    def per_type(self, name: str, evidence: Evidence | None) -> PerType:
        """A baseline of `RECIPES`, fitted when it is asked for the first time.

        Args:
            name: of the recipe.
            evidence: what the predictor keeps of its measurements.

        Raises:
            NoBaselineError: it keeps none, as in a bundle made by an older version.
            BundleError: as `kernel`.
        """
        self._read()
        if evidence is None:
            raise NoBaselineError(
                f"baseline {name!r} is fitted to the measurements that a predictor keeps, and "
                "this one keeps none: it was made by an older version; train the platform anew"
            )
        with self._busy:
            if name not in self._per_type:
                self._per_type[name] = self._fit_per_type(name, evidence)
            return self._per_type[name]

    def _fit_per_type(self, name: str, evidence: Evidence) -> PerType:
        """Fit one of `RECIPES`, or read it where it was kept."""
        key = f"per-type {name}, seed {self._seed}"
        state = None if self._kept is None else self._kept.get(key)
        if state is not None:
            with suppress(*DAMAGE):  # of another version that forgot to say so: fitted anew
                return PerType.from_state(state)
        model = PerType(name, seed=self._seed).fit(evidence.table, evidence.latency_ms)
        if self._kept is not None:
            self._kept.put(key, model.state())
        return model

    def network(self, name: str) -> NetworkModel:
        """A baseline of whole networks; errors as `kernel`."""
        self._read()
        return self._found(self._networks, name)

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        self._read()
        return ModelState(
            "baselines",
            values={
                "kernels": list(self._kernels),
                "networks": list(self._networks),
                "seed": self._seed,
            },
            parts={
                **{f"kernel-{name}": model.state() for name, model in self._kernels.items()},
                **{f"network-{name}": model.state() for name, model in self._networks.items()},
            },
        )

    @staticmethod
    def from_state(state: ModelState) -> Baselines:
        """Read what `state` gave; a baseline that this version does not know is left out."""
        kernels: dict[str, KernelBaseline] = {}
        for name in state.values["kernels"]:
            reader = _READERS.get(name)
            if reader is not None:
                kernels[name] = reader(state.parts[f"kernel-{name}"])
        networks = {
            name: NETWORK_MODELS[name].from_state(state.parts[f"network-{name}"])
            for name in state.values["networks"]
            if name in NETWORK_MODELS
        }
        return Baselines(kernels, networks, int(state.values["seed"]))

    @staticmethod
    def of_old(state: ModelState, models: ModelState, rules: FusionRules) -> Baselines:
        """From a predictor's state as bundles of version 1 hold it.

        Args:
            state: of the predictor.
            models: of its kernels' models.
            rules: its fusion rules.
        """
        forests = {
            name: Forest.from_state(models.parts[f"forest-{name or 'all'}"])
            for name in models.values.get("forests", ())
        }
        kernels: dict[str, KernelBaseline] = {}
        if "" in forests:
            kernels["forest"] = GroupForests(forests, models.values["router"]["joined"])
        if "lookup" in state.parts:
            kernels["lookup"] = Lookup.from_state(state.parts["lookup"])
        networks: dict[str, NetworkModel] = {}
        for name in state.values.get("linear", ()):
            linear = Linear.from_state(state.parts[f"linear-{name}"])
            model = Totals(rules, traffic=linear.traffic)
            model.linear = linear
            networks[name] = model
        return Baselines(kernels, networks)

    def __reduce__(self) -> tuple[Callable[[ModelState], Baselines], tuple[ModelState]]:
        """For pickle and copy."""
        return Baselines.from_state, (self.state(),)

    def _read(self) -> None:
        if self._later is None:
            return
        with self._busy:
            if self._later is not None:
                read = Baselines.from_state(self._later())
                self._kernels, self._networks = read._kernels, read._networks
                self._seed = read._seed
                self._later = None

    @staticmethod
    def _found(held: Mapping[str, Fitted], name: str) -> Fitted:
        if name not in held:
            raise NoBaselineError(
                f"this predictor has no baseline {name!r}: it was made by an older version or "
                f"measured too little for it; it has {', '.join(held) or 'none of the kind'}"
            )
        return held[name]


def threads_of(platform: str) -> int:
    """Threads that a platform's name tells ("...-fp32-4t"); 1 where it tells none."""
    found = re.search(r"-(\d+)t(?:-|$)", platform)
    return max(int(found.group(1)), 1) if found else 1


_READERS: Mapping[str, Callable[[ModelState], KernelBaseline]] = MappingProxyType(
    {
        "forest": GroupForests.from_state,
        "lookup": Lookup.from_state,
        **dict.fromkeys(MNN, MnnCost.from_state),
    }
)
