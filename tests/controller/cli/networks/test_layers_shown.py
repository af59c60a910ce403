"""Layers as rows of a table and as plain data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from latfarm_controller.cli.networks import layers_shown
from latfarm_predictors.features.layers import Layer, Peaks
from latfarm_predictors.graph.graph import Graph, Node, TensorType

LAYER = Layer("conv", "Conv+Relu", (1, 8, 4, 4), 2_000_000, 216, 864, 2048)


def test_a_row_has_the_units_of_its_header() -> None:
    row = layers_shown.cells(LAYER, bounded=False)
    assert row == ["conv", "Conv+Relu", "1x8x4x4", "2.000", "216", "2.0", "976.56"]


@pytest.mark.parametrize(
    ("bound_ms", "compute", "shown"),
    [
        (0.12345, True, ["0.1235", "compute"]),
        (2.0, False, ["2.0000", "memory"]),
        (None, None, ["", ""]),
    ],
)
def test_a_bound_tells_what_decides_it(
    bound_ms: float | None, compute: bool | None, shown: list[str]
) -> None:
    layer = replace(LAYER, bound_ms=bound_ms, compute_bound=compute)
    assert layers_shown.cells(layer, bounded=True)[-2:] == shown


def test_plain_data_tells_the_intensity_too() -> None:
    told = json.loads(json.dumps(layers_shown.plain(LAYER)))
    assert told["intensity"] == pytest.approx(2_000_000 / 2048)
    assert (told["op"], told["output_shape"]) == ("Conv+Relu", [1, 8, 4, 4])


def test_the_ends_of_a_network_are_shown_with_their_shapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = TensorType("float32", (1, 8))
    graph = Graph(
        "g", ("x",), ("y",), (Node("n", "Relu", ("x",), ("y",)),), {}, {"x": kind, "y": kind}
    )
    assert layers_shown.typed(graph, "x") == {"dtype": "float32", "shape": [1, 8]}
    layers_shown.show(graph, [LAYER], "", None)
    told = capsys.readouterr().out
    assert "input x: float32 1x8" in told
    assert "output y: float32 1x8" in told
    assert "bound ms" not in told


def test_a_platform_without_peaks_has_no_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Graph("g", (), (), (), {}, {})
    layers_shown.show(graph, [LAYER], "board-1", None)
    assert "no roofline is drawn" in capsys.readouterr().err
    layers_shown.show(graph, [LAYER], "board-1", Peaks(2e6, 3e6))
    told = capsys.readouterr()
    assert "bound ms" in told.out
    assert told.err == ""
