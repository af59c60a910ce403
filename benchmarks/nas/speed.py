"""How many candidates a second are answered, what each step costs, and the memory that it takes."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
from latfarm_controller.app.estimating import AskedEstimate
from latfarm_controller.app.question import Found, Question
from latfarm_controller.bulk.predictions import PredictedLatency
from latfarm_controller.config import ControllerConfig
from latfarm_controller.estimates import MEASURED, PREDICTED, estimate_many
from latfarm_controller.training.bundles import open_bundle
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion_search import find_parts

from benchmarks.nas.board import PLATFORM, candidates
from benchmarks.query.bench import client, served

REMEMBERED = 100
"""Number of candidates whose kernels a predictor remembers for sure."""
LOOK_EVERY = 50
"""The memory is looked at each time so many candidates have ended."""


def steps_ms(config: ControllerConfig, count: int) -> dict[str, float]:
    """What the steps cost for one candidate, in milliseconds of the processor.

    Args:
        config: of the home.
        count: number of candidates, made anew for each step, since a graph remembers its hashes.
    """
    texts = [graph.dumps() for graph in candidates(0, count)]
    rules = open_bundle(config.bundles_dir, PLATFORM).rules
    predictor = open_bundle(config.bundles_dir, PLATFORM)
    graphs = list(candidates(0, count))

    def step(work: Callable[[], object], size: int = count) -> float:
        gc.collect()
        began_s = time.process_time()
        work()
        return round(1000.0 * (time.process_time() - began_s) / size, 3)

    return {
        "read_json": step(lambda: [Graph.from_json(json.loads(text)) for text in texts]),
        "exact_hash": step(lambda: [hash_of(graph) for graph in graphs]),
        "network_hash": step(lambda: [network_hash_of(graph) for graph in graphs]),
        "cut_into_kernels": step(lambda: [find_parts(graph, rules) for graph in graphs]),
        "predict": step(lambda: predictor.predict_many(graphs)),
        "predict_remembered": step(
            lambda: predictor.predict_many(graphs[-REMEMBERED:]), min(REMEMBERED, count)
        ),
    }


def local(count: int, workers: int) -> dict[str, Any]:
    """Candidates a second of `estimate_many` with so many processes; no controller runs.

    Candidates are made in this process meanwhile, which is a part of the time.
    """
    os.environ["LATFARM_PREDICTION_WORKERS"] = str(workers)

    def ends() -> Iterator[str]:
        for each in estimate_many(candidates(0, count), [PLATFORM]):
            if each.error is not None:
                raise SystemExit(f"{each.model}: {each.error}")
            yield each.source

    return _timed(ends(), count)


def over_grpc(config: ControllerConfig, count: int, workers: int) -> dict[str, Any]:
    """Candidates a second of one stream to `latfarm serve`, which predicts in so many processes.

    They are made and hashed in this process meanwhile, as an architecture search would do it.
    """

    def asked() -> Iterator[AskedEstimate]:
        for place, graph in enumerate(candidates(0, count)):
            yield AskedEstimate(place, replace(Question.about(graph, PLATFORM), measure=False))

    os.environ["LATFARM_PREDICTION_WORKERS"] = str(workers)
    with served(config.home) as (process, _ready_s), client() as one:
        before = rss_bytes(process)

        def ends() -> Iterator[str]:
            for _, end in one.estimate_many(asked()):
                if not isinstance(end, Found | PredictedLatency):
                    raise SystemExit(f"the server answered {end}")
                yield MEASURED if isinstance(end, Found) else PREDICTED

        told = _timed(ends(), count)
        return told | {"server_grew_bytes": rss_bytes(process) - before}


def rss_bytes(process: psutil.Process) -> int:
    """Resident memory of a process and of all processes that it has started."""
    total = process.memory_info().rss
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += child.memory_info().rss
    return int(total)


def _timed(ends: Iterable[str], count: int) -> dict[str, Any]:
    """Rate, sources and memory of candidates whose sources are told as they end."""
    process = psutil.Process()
    gc.collect()
    before = most = rss_bytes(process)
    sources = dict.fromkeys((MEASURED, PREDICTED), 0)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for number, source in enumerate(ends):
        sources[source] += 1
        if number % LOOK_EVERY == 0:
            most = max(most, rss_bytes(process))
    took_s = time.perf_counter() - began_s
    assert sum(sources.values()) == count
    return {
        "candidates": count,
        "per_s": round(count / took_s, 1),
        "cpu_ms_each": round(1000.0 * (time.process_time() - cpu_s) / count, 2),
        "grew_bytes": most - before,
        **sources,
    }
