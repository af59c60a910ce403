"""The fitted baselines of a platform: predictors of the literature, on the same measurements.

`names.BASELINES` has their names, `predict.baseline_sums` predicts networks with them. There are
three kinds:

- Baselines of kernels predict each kernel under the platform's fusion rules. The latency of a
  network is the sum of its kernels, plus the cost of a call and of transfers.
- Baselines of operators do the same without fusion, or with MNN's own fusion.
- Baselines of networks predict a network as a whole (`models/published/network_model.py`).

They are saved with a platform's predictor and read when the first of them is needed, so predicting
is not slower because of them.

Those of `RECIPES` are not saved. They are fitted when they are first needed, to the measurements
that a predictor keeps (`Evidence`), which takes seconds and needs scikit-learn; `keep_in` names the
files in which they are kept then. Their forests would make training several times slower and a
bundle several times larger.
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
    """A fitted baseline of kernels; see `models.base.Regressor`."""

    kind: str

    def predict(self, workloads: Table) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of each kernel, each of shape (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        ...


class Baselines:
    """The fitted baselines of a platform. Thread-safe.

    Args:
        kernels: baselines of kernels and of operators by name, without those of `OWN` and of
            `RECIPES`.
        networks: baselines of networks by name.
        seed: random seed of those of `RECIPES`.
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
        forests: GroupForests | None,
        networks: Sequence[NetworkSample],
        *,
        platform: str = "",
        seed: int = 0,
    ) -> Baselines:
        """Fit all baselines but those of `RECIPES`.

        Args:
            training: the measured kernels, 8 or more.
            rules: how the platform fuses ops.
            forests: the baseline of forests, which is fitted with the kernels' regressors.
            networks: networks measured as a whole; all latencies are positive and finite.
            platform: name of the platform; it ends in its number of threads ("-4t"), which MNN's
                cost model needs.
            seed: random seed; the same data and the same seed give the same baselines.
        """
        table, latency = training.table, training.latency_ms
        kernels: dict[str, KernelBaseline] = {}
        if forests is not None:
            kernels["forest"] = forests
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
                continue  # `network` raises an error that says so
        return Baselines(kernels, whole, seed)

    @staticmethod
    def later(read: Callable[[], ModelState]) -> Baselines:
        """Baselines that `read` reads when the first of them is needed."""
        baselines = Baselines()
        baselines._later = read
        return baselines

    def keep_in(self, kept: FittedCache) -> None:
        """Keep in files what is fitted when it is first needed, and read it from there."""
        self._kept = kept

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the baselines that are here, without those of `OWN` and of `RECIPES`."""
        self._read()
        return (*self._kernels, *self._networks)

    def kernel(self, name: str) -> KernelBaseline:
        """A baseline of kernels or of operators.

        Raises:
            NoBaselineError: it was not fitted; a bundle of an older version may lack it.
            BundleError: the baselines in the bundle cannot be read.
        """
        self._read()
        return self._found(self._kernels, name)

    def per_type(self, name: str, evidence: Evidence | None) -> PerType:
        """A baseline of `RECIPES`, which is fitted when it is first needed.

        Args:
            name: name of the recipe.
            evidence: the measurements that the predictor keeps.

        Raises:
            NoBaselineError: the predictor keeps none; an older version made it.
            BundleError: the baselines in the bundle cannot be read.
        """
        self._read()
        if evidence is None:
            raise NoBaselineError(
                f"baseline {name!r} is fitted to the measurements that a predictor keeps, and "
                "this one keeps none, because it was made by an older version; train the "
                "platform anew"
            )
        with self._busy:
            if name not in self._per_type:
                self._per_type[name] = self._fit_per_type(name, evidence)
            return self._per_type[name]

    def _fit_per_type(self, name: str, evidence: Evidence) -> PerType:
        """Fit one of `RECIPES`, or read it from the files in which it is kept."""
        key = f"per-type {name}, seed {self._seed}"
        state = None if self._kept is None else self._kept.get(key)
        if state is not None:
            with suppress(*DAMAGE):  # a file that cannot be read is no reason to fail
                return PerType.from_state(state)
        model = PerType(name, seed=self._seed).fit(evidence.table, evidence.latency_ms)
        if self._kept is not None:
            self._kept.put(key, model.state())
        return model

    def network(self, name: str) -> NetworkModel:
        """A baseline of whole networks.

        Raises:
            NoBaselineError: it was not fitted; a bundle of an older version may lack it.
            BundleError: the baselines in the bundle cannot be read.
        """
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
        """The baselines whose state this is, without those that this version does not know."""
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
        """The baselines of a bundle of version 1, which held them in other places.

        Args:
            state: state of the predictor.
            models: state of its kernels' regressors.
            rules: how the platform fuses ops.
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
        """Read baselines that are to be read when the first of them is needed."""
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
        """The baseline of that name, or an error that names all there are."""
        if name not in held:
            raise NoBaselineError(
                f"this predictor has no baseline {name!r}: it was made by an older version or "
                f"measured too little for it; it has {', '.join(held) or 'none of this kind'}"
            )
        return held[name]


def threads_of(platform: str) -> int:
    """Number of threads in the name of a platform ("...-fp32-4t"); 1 if there is none."""
    found = re.search(r"-(\d+)t(?:-|$)", platform)
    return max(int(found.group(1)), 1) if found else 1


_READERS: Mapping[str, Callable[[ModelState], KernelBaseline]] = MappingProxyType(
    {
        "forest": GroupForests.from_state,
        "lookup": Lookup.from_state,
        **dict.fromkeys(MNN, MnnCost.from_state),
    }
)
"""Makes each baseline of kernels from its state, by name."""
