"""Tables and plots that compare engines, and MNN's cost model compared with measurements."""

from __future__ import annotations

import importlib.util
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.engines.campaign import EngineOptions, EnginesCampaign
from latfarm_controller.campaigns.engines.platforms import offer
from latfarm_controller.reports.engines import engines
from latfarm_controller.reports.engines.cost_model import against_mnn
from latfarm_controller.reports.engines.plot import plot
from latfarm_controller.reports.pages import svg
from latfarm_controller.testing.campaigns import drive
from latfarm_predictors.features.mnn_backends import gpu
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.models.published.mnn_cost import MnnCost

PLATFORMS = [
    ("pi4-mnn3.6-fp32-1t", "mnn", "3.6.1"),
    ("pi4-mnn3.6-fp32-2t", "mnn", "3.6.1"),
    ("pi4-ncnn20261020-fp32-1t", "ncnn", "1.0.20261020"),
    ("pi4-mnn3.6-vulkan-fp16", "mnn", "3.6.1"),
    ("pi4-litert2.3-int8-1t", "tflite", "2.3.0"),
]
CONDITIONS = {"os": "Debian", "kernel": "6.1", "core_busy_share": "0.3", "clock_max_khz": "unknown"}


def outcome(hardware: dict[str, str] | None = None, **conditions: str) -> dict[str, Any]:
    """A campaign's outcome: MNN takes 1 ms for 1e6 multiply-adds, and half of it on two threads."""
    offers = [
        offer(name, runtime=kind, version=version, model_format=kind, dtype="fp32")
        for name, kind, version in PLATFORMS
    ]
    options = EngineOptions.model_validate(
        {
            "resolution": 64,
            "networks": ["mobilenet-v1", "squeezenet", "resnet18"],
            "passes": 2,
            "board": "pi4",
            "board_id": "b",
            "hardware": hardware or {"cpu": "Cortex-A72 <4>", "cores": "4"},
            "offers": [found.model_dump() for found in offers],
            "missing": {"openvino": "openvino is | not installed"},
        }
    )

    def measure(request: MeasurementRequest) -> Measurement:
        common = (request.request_id, hash_of(request.graph), request.platform, request.purpose)
        if "ncnn" in request.platform and request.graph.name == "resnet18":
            return Measurement(
                *common,
                Outcome.MODEL_ERROR,
                error_code="MODEL_FAILED",
                error_message="<it> crashed | twice",
            )
        latency_ms = macs_of(request.graph) / 1e6 / (2 if request.platform.endswith("-2t") else 1)
        return Measurement(
            *common,
            Outcome.OK,
            board_id="b",
            latency_ms=latency_ms,
            mad_ms=latency_ms * (0.03 if "int8" in request.platform else 0.002),
            session_ms=(latency_ms,) * 2,
            runs=20,
            measured_at_s=1.8e9,
            conditions=CONDITIONS | conditions,
        )

    campaign = EnginesCampaign("*", options)
    drive(campaign, measure)
    data: dict[str, Any] = json.loads(json.dumps(campaign.outcome()))
    return data


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return outcome()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_rows_are_networks_and_columns_engines_by_threads(found: dict[str, Any]) -> None:
    assert engines.dtypes(found) == ["fp16", "fp32", "int8"]
    assert [name for _, name in engines.columns(found, "fp32")] == [
        "mnn3.6 1t",
        "mnn3.6 2t",
        "ncnn20261020 1t",
    ]
    table = dict(engines.rows(found, "fp32"))
    assert list(table) == ["mobilenet-v1", "squeezenet", "resnet18"]
    one, two, ncnn = table["mobilenet-v1"]
    assert two["latency_ms"] == pytest.approx(one["latency_ms"] / 2)
    assert engines.cell_text(two) == f"{two['latency_ms']:.4g} ±0.3 % 2.0x"
    assert ncnn["platform"] == "pi4-ncnn20261020-fp32-1t"
    assert engines.cell_text(table["resnet18"][2]) == "failed"
    assert engines.cell_text(next(engines.rows(found, "int8"))[1][0]).startswith("~")


def test_failures_come_with_their_reason(found: dict[str, Any]) -> None:
    assert engines.failures(found) == [
        ("resnet18", "pi4-ncnn20261020-fp32-1t", "MODEL_FAILED: <it> crashed | twice"),
        ("all", "openvino", "openvino is | not installed"),
    ]


def test_the_conditions_are_told(found: dict[str, Any]) -> None:
    facts = engines.facts(found)
    assert facts["cores"] == "4"
    assert facts["taken on"].startswith("2027-01-15")
    assert "mnn3.6 (3.6.1)" in facts["engines"]
    assert "sentinel on pi4-mnn3.6-fp32-1t" in facts["noise"]
    assert facts["protocol"].startswith("2 passes in random order; 4 fresh sessions")
    assert facts["beside other work"].startswith("14 of 15 cells")


def test_the_page_is_well_formed_and_loads_nothing(found: dict[str, Any]) -> None:
    html = engines.render(found, against_mnn(found), "Engines & more")
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe"}
    assert "Engines &amp; more" in html
    assert "&lt;it&gt; crashed" in html
    assert "<it>" not in html
    assert "Cortex-A72 &lt;4&gt;" in html


def test_the_plot_has_a_bar_for_each_cell(found: dict[str, Any]) -> None:
    drawn = plot(found, "fp32")
    root = ElementTree.fromstring(svg.standalone(drawn))
    names = [child.tag.rpartition("}")[2] for child in root.iter()]
    assert names.count("rect") == 1 + 8  # a white background, and nine cells of which one failed
    assert drawn.count('class="best"') == 3
    assert drawn.count(">failed</text>") == 1
    assert "var(--accent,#2457c5)" in drawn
    assert plot(found, "bf16") == ""


def test_markdown_has_a_cell_for_each_column(found: dict[str, Any]) -> None:
    text = engines.markdown(found, against_mnn(found), "Engines on pi4", "engines.svg")
    lines = text.splitlines()
    assert lines[0] == "# Engines on pi4"
    assert "![latency by network and engine](engines.svg)" in lines
    head = next(i for i, line in enumerate(lines) if line.startswith("| network | mnn3.6 1t"))
    for line in lines[head : head + 5]:
        assert line.count("|") == 5
    assert "**" in lines[head + 2]
    assert r"<it> crashed \| twice" in text


def test_the_model_is_compared_at_each_thread_count() -> None:
    found = outcome(clock_max_khz="1500000")
    model = against_mnn(found)
    assert model.clock == "the board"
    assert len(model.rows) == 9  # three networks: one and two threads, and a GPU
    by_threads = {(r.network, r.threads): r for r in model.rows}
    one, two = by_threads["resnet18", 1], by_threads["resnet18", 2]
    assert one.direct_ms == pytest.approx(2 * two.direct_ms)
    assert one.chosen_ms < one.direct_ms
    # measured: 1 ms for a million multiply-adds; predicted: for 1500 MHz, and a little for pools
    assert one.measured_ms / one.direct_ms == pytest.approx(1500.0 / 1e3, rel=0.02)
    agreed = model.agreement["1t"]["direct"]
    assert agreed.rows == 3
    assert agreed.pearson == pytest.approx(1.0, abs=0.01)
    assert agreed.kendall == pytest.approx(1.0)
    assert agreed.factor == pytest.approx(1.5, rel=0.02)
    assert agreed.scaled_error < 0.02 < agreed.error
    assert set(model.agreement) == {"all", "1t", "2t", "unknown GPU, vulkan"}
    json.dumps(model.to_json())


def test_every_convolution_says_which_algorithm(found: dict[str, Any]) -> None:
    model = against_mnn(found)
    assert len(model.layers["resnet18"]) == 21  # 20 convolutions and the classifier
    assert sum(model.algorithms["resnet18"].values()) == 21
    assert any(name.startswith("winograd") for name in model.algorithms["resnet18"])
    assert not any(name.startswith("winograd") for name in model.algorithms["mobilenet-v1"])


@pytest.mark.parametrize(
    ("cpu", "given", "source", "mhz"),
    [
        ("Cortex-A72", None, "", 2000.0),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", None, "the processor's name", 2500.0),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", 3000.0, "the caller", 3000.0),
    ],
)
def test_who_tells_the_clock(cpu: str, given: float | None, source: str, mhz: float) -> None:
    found = outcome({"cpu": cpu, "cores": "4"})
    model = against_mnn(found, given)
    assert model.clock == source
    row = next(r for r in model.rows if (r.network, r.threads) == ("resnet18", 1))
    assert row.measured_ms / row.direct_ms == pytest.approx(mhz / 1e3, rel=0.02)


def test_without_mnn_there_is_no_comparison(found: dict[str, Any]) -> None:
    cells = [cell for cell in found["cells"] if "mnn" not in cell["platform"]]
    model = against_mnn(found | {"cells": cells})
    assert model.rows == ()
    assert "cost model" not in engines.markdown(found, model, "t")


def test_the_benchmark_renders_its_page_again(found: dict[str, Any], tmp_path: Path) -> None:
    script = Path(__file__).parents[4] / "benchmarks" / "engines.py"
    spec = importlib.util.spec_from_file_location("latfarm_benchmark_engines", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    by_mean = found | {"protocol": "mnn"}
    outcomes = {"outcomes": {"mnn": by_mean, "latfarm": found}}
    (tmp_path / "engines.json").write_text(json.dumps(outcomes))
    assert module.main(["--render", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "engines.md").read_text()
    assert text.startswith("# Engines\n\nWritten by `make bench-engines`")
    assert text.index("MNN's cost model") < text.index("## By the protocol of MNN's paper")
    assert text.count("| network | mnn3.6 1t") == 2
    assert "mean of 10 runs" in text
    assert (tmp_path / "engines.svg").read_text().startswith("<svg xmlns=")


def test_table_2_on_gpus_is_what_mobilenet_costs() -> None:
    # The paper does not name the network of Table 2; the FLOPS of appendix C are MobileNet-v1's.
    graph = zoo.build("mobilenet-v1")
    for name, measured_ms in (("Adreno (TM) 540", 15.8), ("Mali-G71", 20.7)):
        model = MnnCost(gpu(name, "vulkan"), schemes=False)
        assert model.network_ms(graph) == pytest.approx(measured_ms, rel=0.15)
