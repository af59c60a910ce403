"""The metrics of the controller, their bounded labels, and the port that serves them."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import UsageError
from latfarm_controller.farm.observer import FarmState, QueueState
from latfarm_controller.metrics import accuracy as metrics_accuracy
from latfarm_controller.metrics import port as metrics_port
from latfarm_controller.metrics.campaigns import MOST_CAMPAIGNS
from latfarm_controller.metrics.counters import CounterFromZero
from latfarm_controller.metrics.labels import MOST_VALUES, BoundedLabel
from latfarm_controller.metrics.metrics import ControllerMetrics
from latfarm_controller.metrics.port import MetricsPort, Observer, Watched
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.training import bundles
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.learned.score_pool import ScorePool
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.predict.answer import Answer
from latfarm_predictors.slow_core import SlowCore
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "latfarm_controller_"


def graph() -> Graph:
    b = GraphBuilder("net")
    return b.build([b.relu(b.input((1, 8, 8, 8)))])


def measurement(
    latency_ms: float | None = 2.0, purpose: str = "kernel", **changes: object
) -> Measurement:
    base = {"request_id": "r", "graph_hash": "g", "platform": "p", "outcome": Outcome.OK}
    fields: dict[str, object] = {**base, "purpose": purpose, "latency_ms": latency_ms, **changes}
    return Measurement(**fields)  # type: ignore[arg-type]


def value(metrics: ControllerMetrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


def test_events_are_counted() -> None:
    metrics = ControllerMetrics()
    metrics.dispatched("p", 3.0)
    metrics.built(5, 2, 0.5)
    metrics.measured("b", measurement(), 1.5)
    bad = measurement(outcome=Outcome.INFRASTRUCTURE_ERROR, error_code="THROTTLED")
    metrics.measured("b", bad, 0.5)
    metrics.delivered("kernels-1", measurement())
    metrics.delivered("query-abc", measurement())
    metrics.delivered("query-def", measurement())
    metrics.retried("p")
    metrics.quarantined("b")
    metrics.stored(7, 0.01)
    metrics.predicted("p", ok=True)
    metrics.predicted("whatever anybody asks for", ok=False)
    metrics.text()  # new series are 0 in this scrape
    ok = {"platform": "p", "outcome": "ok", "error_code": ""}
    assert value(metrics, "measurements_total", **ok) == 1
    throttled = {"platform": "p", "outcome": "infrastructure_error", "error_code": "THROTTLED"}
    assert value(metrics, "measurements_total", **throttled) == 1
    asked = {"campaign": "query", "name": "query", "platform": "p", "outcome": "ok"}
    assert value(metrics, "campaign_measurements_total", **asked) == 2
    assert value(metrics, "board_busy_seconds_total", board="b") == 2
    for stage, seconds in (("queue", 3.0), ("build", 0.5), ("board", 2.0), ("store", 0.01)):
        assert value(metrics, "stage_seconds_sum", stage=stage) == seconds
    assert value(metrics, "models_built_total", outcome="failed") == 2
    assert value(metrics, "retries_total", platform="p") == 1
    assert value(metrics, "quarantines_total", board="b") == 1
    assert value(metrics, "measurements_stored_total") == 7
    assert value(metrics, "predictions_total", platform="other", outcome="failed") == 1


def test_a_burst_of_failures_between_two_scrapes_is_a_rise() -> None:
    metrics = ControllerMetrics()
    failed = {"platform": "p", "outcome": "model_error", "error_code": "MODEL_UNSUPPORTED"}
    bad = measurement(None, outcome=Outcome.MODEL_ERROR, error_code="MODEL_UNSUPPORTED")
    for _ in range(37):
        metrics.measured("b", bad, 0.5)
    name = "measurements_total"
    assert [value(metrics, name, **failed) for _ in range(3)] == [0, 37, 37]
    metrics.measured("b", bad, 0.5)
    assert value(metrics, name, **failed) == 38


def test_a_series_that_comes_again_begins_again() -> None:
    registry = CollectorRegistry()
    births = CounterFromZero(registry, "eggs", "Eggs.", ["hen"])
    births.inc("a", by=3)
    births.inc("b")
    eggs = partial(registry.get_sample_value, "eggs_total")
    assert (eggs({"hen": "a"}), eggs({"hen": "a"}), eggs({"hen": "b"})) == (0, 3, 1)
    births.remove("a")
    assert eggs({"hen": "a"}) is None
    births.inc("a")
    assert (eggs({"hen": "a"}), eggs({"hen": "a"})) == (0, 1)


def test_names_are_conventional_and_each_has_its_help() -> None:
    families = list(text_string_to_metric_families(ControllerMetrics().text()))
    assert len(families) > 15
    for family in families:
        assert re.fullmatch(r"(latfarm_controller|process)_[a-z_]+", family.name)
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"_(ms|mb|mhz)\b", family.name)


def test_labels_stay_few() -> None:
    few = BoundedLabel(3)
    assert [few(name) for name in "abcdab"] == ["a", "b", "c", "other", "a", "b"]
    metrics = ControllerMetrics()
    for number in range(MOST_VALUES + 50):
        metrics.measured(f"b{number}", measurement(platform=f"p{number}"), 1.0)
    assert metrics.text().count(f"{PREFIX}board_busy_seconds_total{{") == MOST_VALUES + 1
    assert value(metrics, "board_busy_seconds_total", board="other") == 50


def test_only_the_newest_campaigns_have_series() -> None:
    metrics = ControllerMetrics()
    for number in range(MOST_CAMPAIGNS + 5):
        metrics.delivered(f"kernels-{number}", measurement())
        metrics.delivered("kernels-0", measurement())  # it still runs, so its series stays
    first = {"campaign": "kernels-0", "name": "kernels-0", "platform": "p", "outcome": "ok"}
    second = first | {"campaign": "kernels-1", "name": "kernels-1"}
    assert value(metrics, "campaign_measurements_total", **first) == 0
    assert value(metrics, "campaign_measurements_total", **first)
    assert value(metrics, "campaign_measurements_total", **second) is None
    assert metrics.text().count(f"{PREFIX}campaign_measurements_total{{") == MOST_CAMPAIGNS


def test_a_shift_of_the_sentinel_shows_and_goes() -> None:
    metrics = ControllerMetrics()
    where = {"platform": "p", "board": "b"}

    def shift(*times_ms: float) -> float:
        for latency_ms in times_ms:
            metrics.measured("b", measurement(latency_ms, "sentinel"), 0.1)
        found = value(metrics, "sentinel_shift_ratio", **where)
        assert found is not None
        return found

    assert shift(2.0, 2.0, 2.0, 2.0, 2.0) == 0
    assert shift(2.4) == 0, "one outlier is no shift"
    assert shift(2.4, 2.4) == pytest.approx(0.2)
    assert shift(2.0, 2.0) == 0
    metrics.measured("b", measurement(9.0, "kernel"), 0.1)
    assert shift() == 0


class Farm:
    """A farm for the observer."""

    quiet = False

    def state(self) -> FarmState:
        return FarmState({"p": QueueState(4, 2, 9.0)}, {"b": "quarantined"})

    def timing_here(self) -> bool:
        return self.quiet


class Store:
    """A store for the observer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"x" * 100)

    def counts(self) -> Mapping[str, int]:
        return {"measurements": 12}


class Campaigns:
    """The campaigns for the observer."""

    async def all(self) -> Sequence[CampaignRecord]:
        return [CampaignRecord("kernels-1", "night", "kernels", "p", state="failed")]


class Boards:
    """The boards that the farm has not connected to, for the observer."""

    def states(self) -> Mapping[str, str]:
        return {"spare": "away", "b": "ready"}  # of b the farm knows better

    async def run(self) -> None:
        await asyncio.Event().wait()


class Predictor:
    """Predicts 2 ms for every network, with an interval of 1 to 3 ms."""

    slow_core = SlowCore(shift=-1.0)
    """Latencies that were measured at a slowdown of 2 count double."""

    def predict(self, net: Graph, coverage: float) -> Answer:
        return Answer(net.name, "p", 2.0, (1.0, 3.0), coverage, True, ())


async def eventually(metrics: ControllerMetrics, name: str, /, **labels: str) -> float:
    async with asyncio.timeout(90):
        while (found := value(metrics, name, **labels)) is None:
            await asyncio.sleep(0.01)
    return found


async def read(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


def test_the_port_shows_farm_store_and_disk(tmp_path: Path) -> None:
    async def run() -> None:
        metrics = ControllerMetrics()
        healthy = True
        observer = Observer(
            ControllerConfig(home=tmp_path),
            metrics,
            Watched(Farm(), Store(tmp_path / "store"), Campaigns(), Boards()),
        )
        port = MetricsPort(0, metrics, observer, lambda: healthy)
        port.open()
        try:
            assert await eventually(metrics, "queue_oldest_seconds", platform="p") == 9.0
            assert await eventually(metrics, "store_rows", table="measurements") == 12
            assert await eventually(metrics, "campaigns", state="failed") == 1
            text = await read(port.url)
            assert f'{PREFIX}board_state{{board="spare",state="away"}} 1.0' in text
            assert f'{PREFIX}queue_length{{platform="p"}} 4.0' in text
            assert f'{PREFIX}board_state{{board="b",state="quarantined"}} 1.0' in text
            assert f"{PREFIX}store_size_bytes 100.0" in text
            assert f"{PREFIX}disk_free_bytes" in text
            health = port.url.replace("/metrics", "/-/healthy")
            assert await read(health) == "healthy\n"
            healthy = False
            with pytest.raises(urllib.error.HTTPError) as caught:
                await read(health)
            assert caught.value.code == 503
            caught.value.close()
            taken = int(port.url.split(":")[2].partition("/")[0])
            with pytest.raises(UsageError, match="--metrics-port"):
                MetricsPort(taken, metrics, observer, lambda: True).open()
        finally:
            await port.close()
            await port.close()

    asyncio.run(run())


def test_predictions_are_compared_while_no_board_here_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_port, "LOOK_S", 0.01)
    path = tmp_path / "bundles" / "p" / "0001.zip"
    monkeypatch.setattr(bundles, "promoted", lambda _folder: {"p": path})
    monkeypatch.setattr("latfarm_predictors.bundle.load_bundle", lambda _path: Predictor())
    metrics, farm = ControllerMetrics(), Farm()
    where = {"platform": "p", "purpose": "network"}

    async def run() -> None:
        observer = Observer(
            ControllerConfig(home=tmp_path),
            metrics,
            Watched(farm, Store(tmp_path / "store"), Campaigns(), Boards()),
        )
        looking = asyncio.create_task(observer.run())
        farm.quiet = True
        slow = replace(measurement(1.25, "network"), conditions={"slowdown": "2"})
        metrics.network_measured(graph(), slow)  # 2.5 ms in the unit of the predictor
        metrics.network_measured(graph(), measurement(4.0, "network"))
        await eventually(metrics, "queue_length", platform="p")
        assert value(metrics, "prediction_error_ratio_count", **where) is None
        farm.quiet = False
        async with asyncio.timeout(90):
            while metrics.accuracy.waiting:
                await asyncio.sleep(0.01)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(run())
    assert value(metrics, "prediction_error_ratio_count", **where) == 2
    assert value(metrics, "prediction_error_ratio_sum", **where) == pytest.approx(0.2 + 0.5)
    assert value(metrics, "prediction_covered_total", **where) == 1


def test_a_new_bundle_tells_of_the_networks_that_its_fit_left_out() -> None:
    metrics = ControllerMetrics()
    where = {"platform": "p", "purpose": "left_out"}
    assert value(metrics, "prediction_error_ratio_count", **where) is None
    metrics.measured("b", measurement(), 1.0)
    # Series start at 0, because a rate does not show the first value of a series.
    assert value(metrics, "prediction_error_ratio_count", **where) == 0
    assert value(metrics, "prediction_covered_total", **where) == 0
    residuals = np.log([1.25, 0.5, *[1.0] * 18])
    scores = np.array([0.5, 9.0, *[0.5] * 18])  # 9.0 lies far outside of the others
    correction = SimpleNamespace(residuals=residuals, scores=scores, calibration=ScorePool(scores))
    metrics.trained(SimpleNamespace(platform="p", correction=correction))  # type: ignore[arg-type]
    assert value(metrics, "prediction_error_ratio_count", **where) == 20
    assert value(metrics, "prediction_error_ratio_sum", **where) == pytest.approx(0.2 + 1.0)
    assert value(metrics, "prediction_covered_total", **where) == 19


def test_what_cannot_be_compared_is_counted(tmp_path: Path) -> None:
    metrics = ControllerMetrics()
    for _ in range(metrics_accuracy.MOST_WAITING + 3):
        metrics.network_measured(graph(), measurement(purpose="network"))
    failed = measurement(None, "network", outcome=Outcome.MODEL_ERROR)
    metrics.network_measured(graph(), failed)
    assert value(metrics, "prediction_skipped_total", reason="too_many") == 3
    assert metrics.accuracy.settle(tmp_path) == 0
    skipped = value(metrics, "prediction_skipped_total", reason="no_bundle")
    assert skipped == metrics_accuracy.MOST_WAITING


def test_only_a_controller_that_serves_opens_a_port(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path / "home", local_agent=False, metrics_port=0)

    async def run(public: bool) -> tuple[str, str]:
        server = await ControllerServer.open(config, public=public)
        try:
            url = server.metrics_url
            return url, await read(url) if url else ""
        finally:
            await server.close()

    assert asyncio.run(run(public=False)) == ("", "")
    url, text = asyncio.run(run(public=True))
    assert url.startswith("http://127.0.0.1:")
    assert f"{PREFIX}build_info" in text
    with pytest.raises(OSError, match="refused"):
        asyncio.run(read(url))
