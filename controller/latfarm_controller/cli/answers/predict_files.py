"""Reads and predicts the files of `latfarm predict`: a few here, many in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.errors import GraphError, ModelFileError

from latfarm_controller.cli.answers.predict_remarks import as_sample, remarks_on
from latfarm_controller.cli.answers.predict_show import Prediction
from latfarm_controller.cli.shell import inputs
from latfarm_controller.each_alone import each_alone
from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.predict.predictor import PlatformPredictor

MANY_FILES = 100
"""From this number of files on, workers repay their start: a file takes some tens of ms."""
FIRST_FILES = 16
"""Number of files that are predicted in this process before the workers have answered, so that a
mistake that concerns all files, such as a wrong platform, is told at once."""
TOGETHER = 16
"""Number of files in one task of a worker."""
AHEAD = 4
"""Largest number of tasks for each worker that wait, run, or have results that nobody has taken
yet. So few answers are held, however many files there are, and no worker waits for its next task.
"""


@dataclass(frozen=True, slots=True)
class HowToPredict:
    """How files are read and predicted.

    Attributes:
        bundles_dir: the folder of all bundles.
        platforms: names of platforms; an empty one: the only one with a bundle, or the sample.
        coverage: share of cases in which a latency shall lie in its interval.
        energy: whether energies are predicted, too.
        explain: whether to tell how far each answer can be trusted.
        baselines: names of other predictors that predict, too.
        batch: batch size in the place of that of the file; 0: as the model has it.
        shape: shapes of inputs, as `inputs.shapes` reads them.
        optimise: whether to simplify models first.
        kernels: whether the kernels of answers are wanted; those of very many networks take
            gigabytes.
    """

    bundles_dir: Path
    platforms: tuple[str, ...]
    coverage: float
    energy: bool
    explain: bool
    baselines: tuple[str, ...]
    batch: int
    shape: tuple[str, ...]
    optimise: bool
    kernels: bool = True


Open = Callable[[Path, str], "tuple[PlatformPredictor, bool]"]
"""Opens the bundle in use of a platform, and tells whether it is the sample."""
Outcome = list[Prediction] | Exception
"""The predictions of a file, one for each platform, or why it cannot be read or predicted."""


def outcomes(
    files: Sequence[Path], how: HowToPredict, workers_setting: int | None
) -> Generator[Outcome, None, None]:
    """What becomes of files, in their order; few of them are held at a time.

    Args:
        files: the files.
        how: how they are read and predicted.
        workers_setting: the setting `prediction_workers`.

    Raises:
        ControllerError, PredictorsError: nothing can be predicted like this.
    """
    if len(files) < MANY_FILES or workers_setting == 1:
        opened = lru_cache(maxsize=len(how.platforms))(_open)
        for first in range(0, len(files), MANY_FILES):  # the networks of all may be too many
            yield from _predict_files(files[first : first + MANY_FILES], how, opened)
        return
    from latfarm_controller.bulk.lender import worker_count
    from latfarm_controller.bulk.pool import WorkerPool

    workers = worker_count(workers_setting)
    with WorkerPool(workers) as pool:
        starts = iter(range(FIRST_FILES, len(files), TOGETHER))

        def submitted(number: int) -> list[Future[list[Outcome]]]:
            return [
                pool.submit(predict_in_worker, files[first : first + TOGETHER], how)
                for first in islice(starts, number)
            ]

        tasks = deque(submitted(AHEAD * workers))
        yield from _predict_files(files[:FIRST_FILES], how, _open)
        while tasks:
            results = tasks.popleft().result()
            tasks.extend(submitted(1))
            yield from results


def predict_in_worker(files: Sequence[Path], how: HowToPredict) -> list[Outcome]:
    """Predict files in a worker process, which keeps the bundles that it has opened."""
    return _predict_files(files, how, _open_once)


def _predict_files(files: Sequence[Path], how: HowToPredict, opened: Open) -> list[Outcome]:
    """Predict files on all platforms in this process.

    A file that cannot be read, or whose network no board could run, fails alone.
    """
    graphs: dict[int, Graph] = {}
    found: list[Outcome] = []
    for place, file in enumerate(files):
        try:
            graphs[place] = inputs.read_model(file, how.batch, how.shape, optimise=how.optimise)
            found.append([])
        except ModelFileError as error:
            found.append(error)
    for name in how.platforms if graphs else ():
        predictor, is_sample = opened(how.bundles_dir, name)
        if is_sample and how.energy:
            raise UsageError(
                "the sample bundle has no energies; latfarm demo --energy measures those of this "
                "machine, if it has a power sensor"
            )
        named = [(files[place], graph) for place, graph in graphs.items()]
        predictions = _predict_each(predictor, named, how)
        for place, one in zip(tuple(graphs), predictions, strict=True):
            if isinstance(one, Exception):
                found[place] = one
                del graphs[place]
                continue
            if is_sample:
                _mark_as_sample(one)
            told = found[place]
            assert isinstance(told, list)
            told.append(one)
    return found


def _predict_each(
    predictor: PlatformPredictor, named: Sequence[tuple[Path, Graph]], how: HowToPredict
) -> list[Prediction | Exception]:
    """Predict networks together; one that cannot be predicted fails alone."""

    def predicted(some: Sequence[tuple[Path, Graph]]) -> list[Prediction]:
        asked = [(file, inputs.for_platform(graph, predictor.platform)) for file, graph in some]
        return _predict(predictor, asked, how)

    return each_alone(predicted, named, GraphError)


def _mark_as_sample(prediction: Prediction) -> None:
    """Let a prediction say that it is one of the sample bundle, and send nobody to its board."""
    from latfarm_controller.cli.answers.predict_explain import as_samples_trust

    prediction.remarks = as_sample(prediction.remarks)
    if prediction.trust is not None:
        prediction.trust = as_samples_trust(prediction.trust)


def _open(bundles_dir: Path, platform: str) -> tuple[PlatformPredictor, bool]:
    """The predictor in use of a platform, and whether it is the sample."""
    from latfarm_controller.training.bundles import open_or_sample

    return open_or_sample(bundles_dir, platform)


_open_once = lru_cache(maxsize=4)(_open)  # a worker ends with the command that started it


def _predict(
    predictor: PlatformPredictor, named: Sequence[tuple[Path, Graph]], how: HowToPredict
) -> list[Prediction]:
    """Predict latencies, and energies, trust and other predictors where these are asked for."""
    from latfarm_predictors.trust.network_trust import covered_share, trust

    graphs = [graph for _, graph in named]
    costs = predictor.predict_energies(graphs, how.coverage) if how.energy else []
    answers = predictor.predict_many(graphs, how.coverage)
    found = []
    for (file, graph), answer in zip(named, answers, strict=True):
        covered = covered_share(predictor, graph, answer)
        one = Prediction(file, answer, covered, remarks_on(predictor, graph, answer, covered))
        if how.explain:
            one.trust = trust(predictor, graph, how.coverage, model=str(file))
        if how.baselines:
            one.baselines = _by_baselines(predictor, graph, how.baselines)
        found.append(one)
    for one, cost in zip(found, costs, strict=False):
        one.cost = cost
    if not how.kernels:
        for one in found:
            one.answer = replace(one.answer, kernels=())
            one.cost = None if one.cost is None else replace(one.cost, kernels=())
    return found


def _by_baselines(
    predictor: PlatformPredictor, graph: Graph, names: Sequence[str]
) -> dict[str, float]:
    """Latencies of a network by other predictors, in milliseconds."""
    from latfarm_predictors.predict.baseline_sums import baseline_ms

    return {name: baseline_ms(predictor, graph, name) for name in names}
