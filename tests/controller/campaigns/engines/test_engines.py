"""The comparison of engines: all networks on all platforms of a board, in random order."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.engines.campaign import EngineOptions, EnginesCampaign
from latfarm_controller.campaigns.engines.platforms import ComparedPlatform, choose, offer
from latfarm_controller.campaigns.kinds import COMPARING, KINDS, make_campaign
from latfarm_controller.errors import UsageError
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome

VERSIONS = {
    "onnxruntime1.31": "1.31.1",
    "mnn3.6": "3.6.1",
    "ncnn20261020": "1.0.20261020",
    "openvino2026.4-gpu": "2026.4.1",
}


def made(name: str) -> ComparedPlatform:
    version = next((v for engine, v in VERSIONS.items() if engine in name), "1.0")
    runtime = name.split("-")[1].rstrip("0123456789.")
    model_format = {"mnn": "mnn", "ncnn": "ncnn"}.get(runtime, "onnx")
    return offer(name, runtime=runtime, version=version, model_format=model_format, dtype="fp32")


OFFERS = [
    made(f"pi4-{engine}-fp32-{threads}t")
    for engine in ("onnxruntime1.31", "mnn3.6", "ncnn20261020")
    for threads in (1, 2)
] + [made("pi4-openvino2026.4-gpu-fp16")]


def options(**changes: Any) -> EngineOptions:
    return EngineOptions.model_validate(
        {
            "networks": ["squeezenet", "mobilenet-v1"],
            "resolution": 64,
            "passes": 3,
            "board": "pi",
            "board_id": "b1",
            "offers": [found.model_dump() for found in OFFERS],
            **changes,
        }
    )


def engine_requests(requests: list[MeasurementRequest]) -> list[MeasurementRequest]:
    return [request for request in requests if request.purpose == "engine"]


def cells(campaign: EnginesCampaign) -> dict[tuple[str, str], dict[str, Any]]:
    return {(c["network"], c["platform"]): c for c in campaign.outcome()["cells"]}


@pytest.mark.parametrize(
    ("name", "version", "engine", "dtype", "threads"),
    [
        ("local-mnn3.6-fp32-1t", "3.6.1", "mnn3.6", "fp32", 1),
        ("pi-4-ncnn20261020-fp32-4t", "1.0.20261020", "ncnn20261020", "fp32", 4),
        ("imx93-litert2.3-ethosu-int8", "2.3.0", "litert2.3-ethosu", "int8", None),
        ("rk3588-mnn3.6-opencl-fp16", "3.6.1", "mnn3.6-opencl", "fp16", None),
        ("jetson-tensorrt10.3-fp16", "10.3.0", "tensorrt10.3", "fp16", None),
        ("vela5.2-ethosu65-256-int8", "5.2.0", "vela5.2-ethosu65-256", "int8", None),
        ("toy", "1", "toy", "fp32", None),
    ],
)
def test_engine_and_threads_are_in_the_name(
    name: str, version: str, engine: str, dtype: str, threads: int | None
) -> None:
    found = offer(name, runtime="r", version=version, model_format="onnx", dtype="fp32")
    assert (found.engine, found.dtype, found.threads) == (engine, dtype, threads)


def test_offers_are_chosen_by_pattern_threads_type_and_reality() -> None:
    sim = offer(
        "sim-fp32-1t", runtime="s", version="1", model_format="f", dtype="fp32", real_time=False
    )
    every = [*OFFERS, sim]
    assert {o.name for o in choose(every)} == {o.name for o in OFFERS}
    assert sim in choose(every, simulated=True)
    kept = choose(every, threads=[2])
    assert {o.threads for o in kept} == {2, None}
    assert [o.engine for o in choose(every, pattern="*mnn*")] == ["mnn3.6", "mnn3.6"]
    assert {o.dtype for o in choose(every, dtypes=["fp16"])} == {"fp16"}


def test_every_cell_is_measured_in_every_pass_on_the_one_board() -> None:
    board = SimulatedPlatform(rules=FusionRules.none(), noise=0.004)
    campaign = EnginesCampaign("*", options())
    asked = drive(campaign, board.measure)
    requests = engine_requests(asked)
    assert len(requests) == 3 * 2 * len(OFFERS)
    assert len({r.request_id for r in asked}) == len(asked)
    assert {r.board for r in asked} == {"b1"}
    assert {r.settings.sessions for r in requests} == {2}
    # Each pass measures all cells, in another order.
    size = 2 * len(OFFERS)
    orders = [
        [(r.graph.name, r.platform) for r in requests[i : i + size]]
        for i in range(0, len(requests), size)
    ]
    assert {frozenset(order) for order in orders} == {frozenset(orders[0])}
    assert len({tuple(order) for order in orders}) == 3
    # Platforms that share a model are measured together, with a sentinel before each group.
    marks = [i for i, r in enumerate(asked) if r.purpose == "sentinel"]
    assert marks[0] == 0
    assert marks[-1] == len(asked) - 1
    assert max(b - a for a, b in pairwise(marks)) <= 3
    assert campaign.done
    assert campaign.progress().done == campaign.progress().total == len(asked)
    found = cells(campaign)
    assert len(found) == size
    exact = board.exact_ms(requests[0].graph)
    first = found[requests[0].graph.name, requests[0].platform]
    assert first["latency_ms"] == pytest.approx(exact, rel=0.02)
    assert len(first["passes_ms"]) == 3
    assert json.loads(json.dumps(campaign.outcome()))["sentinel"][0]["count"] == len(marks)


def test_an_interrupted_campaign_goes_on_where_it_stopped() -> None:
    def run(
        stop_after: int | None, known: dict[str, Measurement]
    ) -> tuple[EnginesCampaign, list[MeasurementRequest]]:
        campaign = EnginesCampaign("*", options(passes=2))
        measured = drive(
            campaign, board.measure, shuffle=Random(1), stop_after=stop_after, known=known
        )
        return campaign, measured

    board = SimulatedPlatform(rules=FusionRules.none(), noise=0.01)
    _, first = run(13, {})
    known = dict(board.answered)
    resumed, second = run(None, known)
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    whole, everything = run(None, {})
    assert len(first) + len(second) == len(everything)
    assert resumed.outcome()["cells"] == whole.outcome()["cells"]


def test_failures_are_cells_with_reasons_and_model_errors_are_not_repeated() -> None:
    def fails(request: MeasurementRequest) -> Outcome | None:
        if request.purpose == "sentinel":
            return None
        if "mnn" in request.platform and request.graph.name == "squeezenet":
            return Outcome.MODEL_ERROR
        if "ncnn" in request.platform and request.repeat == 1:
            return Outcome.INFRASTRUCTURE_ERROR
        return None

    board = SimulatedPlatform(rules=FusionRules.none(), failures=fails)
    campaign = EnginesCampaign("*", options())
    requests = engine_requests(drive(campaign, board.measure))
    tries = [r for r in requests if "mnn" in r.platform and r.graph.name == "squeezenet"]
    assert len(tries) == 2  # one for each thread count
    found = cells(campaign)
    failed = found["squeezenet", "pi4-mnn3.6-fp32-1t"]
    assert failed["latency_ms"] is None
    assert failed["reason"] == "SIMULATED: a simulated failure"
    assert failed["speedup"] is None
    assert not failed["fastest"]
    partly = found["squeezenet", "pi4-ncnn20261020-fp32-1t"]
    assert len(partly["passes_ms"]) == 2
    assert partly["reason"] == ""
    assert partly["failures"] == ["SIMULATED: a simulated failure"]


def answer(request: MeasurementRequest, latency_ms: float, at_s: float, **more: Any) -> Measurement:
    return Measurement(
        request.request_id,
        hash_of(request.graph),
        request.platform,
        request.purpose,
        Outcome.OK,
        board_id="b1",
        latency_ms=latency_ms,
        mad_ms=0.001 * latency_ms,
        session_ms=(latency_ms, latency_ms),
        runs=20,
        measured_at_s=at_s,
        **more,
    )


def test_speed_ups_the_fastest_and_the_unstable() -> None:
    pace = {"onnxruntime": 10.0, "mnn": 8.0, "ncnn": 12.0, "openvino": 3.0}
    seen: dict[tuple[str, str], int] = {}

    def measure(request: MeasurementRequest) -> Measurement:
        base = next(ms for name, ms in pace.items() if name in request.platform)
        latency_ms = base / 1.6 if request.platform.endswith("-2t") else base
        if "ncnn" in request.platform and request.platform.endswith("-1t"):
            number = seen.setdefault((request.graph.name, request.platform), 0)
            seen[request.graph.name, request.platform] += 1
            latency_ms *= (1.0, 1.0, 1.08)[number % 3]
        return answer(request, latency_ms, 0.0)

    campaign = EnginesCampaign("*", options(networks=["squeezenet"]))
    drive(campaign, measure)
    found = {platform: cell for (_, platform), cell in cells(campaign).items()}
    two = found["pi4-mnn3.6-fp32-2t"]
    assert two["speedup"] == pytest.approx(1.6)
    assert two["fastest"]
    assert not two["unstable"]
    assert found["pi4-mnn3.6-fp32-1t"]["speedup"] == pytest.approx(1.0)
    assert found["pi4-ncnn20261020-fp32-1t"]["unstable"]
    gpu = found["pi4-openvino2026.4-gpu-fp16"]
    assert gpu["speedup"] is None
    assert gpu["fastest"]  # the fastest of its element type
    assert [p for p, cell in found.items() if cell["fastest"]] == [
        "pi4-mnn3.6-fp32-2t",
        "pi4-openvino2026.4-gpu-fp16",
    ]


def test_mnns_protocol_is_a_mean_of_ten_after_a_warm_up() -> None:
    campaign = EnginesCampaign("*", options(networks=["squeezenet"], protocol="mnn", passes=1))

    def measure(request: MeasurementRequest) -> Measurement:
        return answer(request, 5.0, 0.0, conditions={"mean_ms": "6.5", "uncorrected_ms": "6"})

    requests = engine_requests(drive(campaign, measure))
    settings = requests[0].settings
    assert (settings.sessions, settings.min_runs, settings.max_runs) == (1, 10, 10)
    assert (settings.warmup_runs, settings.warmup_ms, settings.precision) == (0, 0.0, 0.0)
    cell = cells(campaign)["squeezenet", "pi4-mnn3.6-fp32-1t"]
    assert (cell["latency_ms"], cell["mean_ms"], cell["uncorrected_ms"]) == (6.5, 6.5, 6.0)


def test_what_was_measured_while_the_board_drifted_is_measured_again() -> None:
    clock = {"s": 0.0}
    slow = range(20, 27)

    def measure(request: MeasurementRequest) -> Measurement:
        clock["s"] += 1.0
        factor = 1.5 if clock["s"] in slow else 1.0
        return answer(request, 10.0 * factor, clock["s"])

    campaign = EnginesCampaign("*", options())
    requests = engine_requests(drive(campaign, measure))
    again = len(requests) - 3 * 2 * len(OFFERS)
    outcome = campaign.outcome()
    assert outcome["void"] == again > 0
    assert all(len(cell["passes_ms"]) == 3 for cell in outcome["cells"])
    assert all(max(cell["passes_ms"]) == 10.0 for cell in outcome["cells"])


def test_a_void_pass_is_kept_where_measuring_it_again_fails() -> None:
    """A drifted latency is better than none, but it must not look steady."""
    seen: set[tuple[str, str]] = set()
    clock = {"s": 0.0}

    def measure(request: MeasurementRequest) -> Measurement:
        clock["s"] += 1.0
        slow = 1.5 if clock["s"] in range(8, 13) else 1.0
        found = answer(request, 10.0 * slow, clock["s"])
        key = (hash_of(request.graph), request.platform)
        if request.purpose == "engine" and key in seen:
            return replace(
                found, outcome=Outcome.INFRASTRUCTURE_ERROR, latency_ms=None, error_code="LOST"
            )
        seen.add(key)
        return found

    campaign = EnginesCampaign("*", options(passes=1))
    drive(campaign, measure)
    outcome = campaign.outcome()
    assert outcome["void"] > 0
    told = [cell for cell in outcome["cells"] if cell["failures"]]
    assert len(told) == outcome["void"]
    assert all(cell["latency_ms"] is not None and cell["unstable"] for cell in told)
    assert not any(cell["unstable"] for cell in outcome["cells"] if not cell["failures"])


def test_without_a_timed_platform_there_is_no_sentinel() -> None:
    sim = [found.model_copy(update={"real_time": False}).model_dump() for found in OFFERS]
    campaign = EnginesCampaign("*", options(offers=sim, passes=1))
    requests = drive(campaign, SimulatedPlatform(rules=FusionRules.none()).measure)
    assert {r.purpose for r in requests} == {"engine"}
    assert campaign.outcome()["sentinel"] == []


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"networks": ["resnet-18"]}, "no zoo family 'resnet-18'"),
        ({"networks": ["resnet18", "resnet18"]}, "each network once"),
        ({"networks": []}, "networks"),
        ({"protocol": "tvm"}, "protocol"),
        ({"passes": 0}, "passes"),
        ({"thread": [1]}, "unknown key 'thread'"),
    ],
)
def test_a_wrong_configuration_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        make_campaign("engines", "*", config)


def test_the_kind_is_registered_as_a_comparison() -> None:
    assert set(KINDS) >= COMPARING == {"engines"}
    campaign = make_campaign("engines", "*", {})
    assert campaign.done  # nothing to compare until a board is chosen
