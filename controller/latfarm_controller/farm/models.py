"""The models that open requests need: their graphs, what was built of them, and what is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.farm.boards.links import BuiltModel, FarmBackend, NotBuilt
from latfarm_controller.farm.scheduling.messages import ModelSpec
from latfarm_controller.farm.watch import FarmWatch

KEPT_BYTES = 64 << 20
KEPT_MODELS = 1000
"""Models that nobody needs now but that sentinels and repeats will ask for again."""


class Models:
    """Built models of a farm. Used from one event loop.

    Args:
        backend: whose builder builds them.
        watch: told of what was built.
        clock_s: any clock that never goes back.
    """

    def __init__(
        self, backend: FarmBackend, watch: FarmWatch, clock_s: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._watch = watch
        self._clock_s = clock_s
        self._graphs: dict[ModelSpec, Graph] = {}
        self._built: dict[ModelSpec, BuiltModel] = {}
        self._kept: OrderedDict[ModelSpec, BuiltModel] = OrderedDict()
        self._kept_bytes = 0

    def need(self, model: ModelSpec, graph: Graph) -> None:
        """A request needs a model of this graph."""
        self._graphs[model] = graph

    def built(self, model: ModelSpec) -> BuiltModel:
        """A model that was built and not released."""
        return self._built[model]

    async def build(self, models: Sequence[ModelSpec]) -> list[BuiltModel | NotBuilt]:
        """Build models that are needed, or take what is kept; one answer for each, in any order."""
        kept = [self._kept.pop(model) for model in models if model in self._kept]
        self._kept_bytes -= sum(built.size_bytes for built in kept)
        there = {built.model for built in kept}
        jobs = [(model, self._graphs[model]) for model in models if model not in there]
        begun_s = self._clock_s()
        answers = await self._backend.builder.build(jobs) if jobs else []
        if jobs:
            failed = sum(not isinstance(answer, BuiltModel) for answer in answers)
            self._watch.built(len(jobs), failed, self._clock_s() - begun_s)
        told = [*kept, *answers]
        self._built.update(
            {answer.model: answer for answer in told if isinstance(answer, BuiltModel)}
        )
        return told

    def release(self, model: ModelSpec) -> None:
        """Nobody needs a built model now; it is kept for a while: sentinels and repeats return."""
        built = self._built.pop(model)
        self._kept[model] = built
        self._kept_bytes += built.size_bytes
        while self._kept_bytes > KEPT_BYTES or len(self._kept) > KEPT_MODELS:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes

    def forget_graphs(self, needed: Container[ModelSpec]) -> None:
        """Forget the graphs of all models that are not needed."""
        for model in [model for model in self._graphs if model not in needed]:
            del self._graphs[model]
