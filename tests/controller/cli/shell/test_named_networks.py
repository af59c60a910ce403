"""The networks that a command is given, and how it names them."""

from __future__ import annotations

from pathlib import Path

from latfarm_controller.cli.shell.named_networks import named_networks
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.testing.onnx_files import write


def exported(folder: Path, name: str, channels: int) -> Path:
    """A network as exporters write it that call every network main_graph."""
    builder = GraphBuilder("main_graph")
    made = builder.build([builder.conv(builder.input((1, 3, 8, 8)), channels, 3)])
    return write(made, folder / f"{name}.onnx")


def test_networks_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = [str(exported(tmp_path, name, size)) for name, size in (("a", 4), ("b", 8))]
    found = named_networks([*files, "squeezenet"], 0, (), "toy-fp32-1t")
    assert list(found) == [*files, "squeezenet"]
    assert list(named_networks(files[:1], 0, (), "toy-fp32-1t")) == ["main_graph"]


def test_a_batch_is_that_of_all_networks(tmp_path: Path) -> None:
    file = str(exported(tmp_path, "a", 4))
    for models in ([], [file, "squeezenet"]):
        found = named_networks(models, 4, (), "toy-fp32-1t").values()
        assert {graph.type_of(graph.inputs[0]).shape[0] for graph in found} == {4}
