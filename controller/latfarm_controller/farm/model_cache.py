"""The models that open requests need, and those built earlier that are kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.farm.boards.interfaces import FarmBackend
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.scheduling.messages import ModelSpec

KEPT_BYTES = 64 << 20
"""Most bytes of models that are kept although no request needs them now.

Sentinels and repeated measurements need the same models again.
"""
KEPT_MODELS = 1000
"""Most models that are kept although no request needs them now."""


class ModelCache:
    """The models of a farm. Use it from one event loop.

    Args:
        backend: its builder builds the models.
        observer: told how many models were built, and how long that took.
        clock_s: any clock that never goes back, in seconds.
    """

    def __init__(
        self, backend: FarmBackend, observer: FarmObserver, clock_s: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._observer = observer
        self._clock_s = clock_s
        self._graphs: dict[ModelSpec, Graph] = {}
        self._built: dict[ModelSpec, BuiltModel] = {}
        self._kept: OrderedDict[ModelSpec, BuiltModel] = OrderedDict()
        self._kept_bytes = 0
        self._released: list[ModelSpec] = []  # since graphs were forgotten last

    def need(self, model: ModelSpec, graph: Graph) -> int:
        """Note the graph from which a model that a request needs can be built.

        Returns:
            about how large the built model will be: the bytes of the graph's weights.
        """
        self._graphs[model] = graph
        return sum(weight.type.size_bytes for weight in graph.weights.values())

    def built(self, model: ModelSpec) -> BuiltModel:
        """A model that was built and is not released yet."""
        return self._built[model]

    async def build(self, models: Sequence[ModelSpec]) -> list[BuiltModel | NotBuilt]:
        """Build models, or take those that are kept; one answer for each model, in any order."""
        kept = [self._kept.pop(model) for model in models if model in self._kept]
        self._kept_bytes -= sum(built.size_bytes for built in kept)
        there = {built.model for built in kept}
        jobs = [(model, self._graphs[model]) for model in models if model not in there]
        begun_s = self._clock_s()
        answers = await self._backend.builder.build(jobs) if jobs else []
        if jobs:
            failed = sum(not isinstance(answer, BuiltModel) for answer in answers)
            self._observer.built(len(jobs), failed, self._clock_s() - begun_s)
        told = [*kept, *answers]
        self._built.update(
            {answer.model: answer for answer in told if isinstance(answer, BuiltModel)}
        )
        return told

    def release(self, model: ModelSpec) -> None:
        """Note that no request needs a built model now; it is kept while there is room."""
        built = self._built.pop(model)
        self._released.append(model)
        self._kept[model] = built
        self._kept_bytes += built.size_bytes
        while self._kept_bytes > KEPT_BYTES or len(self._kept) > KEPT_MODELS:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes

    def forget_graphs(self, needed: Set[ModelSpec]) -> None:
        """Forget the graphs of all models that are not needed.

        A model that was built was released before. All graphs are looked at only where some are
        left of models that were never built.
        """
        released, self._released = self._released, []
        for model in released:
            if model not in needed:
                self._graphs.pop(model, None)
        if len(self._graphs) > len(needed):
            for model in [model for model in self._graphs if model not in needed]:
                del self._graphs[model]
