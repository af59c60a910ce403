"""PyTorch networks are read through PyTorch's own exporter; without it, the extra is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from latfarm_predictors import from_torch
from latfarm_predictors.errors import MissingLibraryError, ModelFileError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.totals import graph_totals


@pytest.mark.parametrize("name", ["torch", "onnxscript"])
def test_without_pytorch_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibraryError, match=r"latfarm-predictors\[torch\]") as error:
        from_torch("model.pt2")
    assert name in str(error.value)


def network(torch: Any, device: str = "cpu") -> Any:
    nn = torch.nn
    with torch.device(device):
        layers = [
            *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
        ]
        return nn.Sequential(*layers)


@pytest.fixture
def torch() -> Any:
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


def test_a_module_an_exported_program_and_a_file_are_one_network(
    torch: Any, tmp_path: Path
) -> None:
    module = network(torch)
    module[1].eval()
    graph = from_torch(module, torch.zeros(1, 3, 32, 32))
    assert (module.training, module[1].training) == (True, False)
    assert graph.name == "Sequential"
    assert graph_totals(graph).macs == 16 * 3 * 9 * 16 * 16 + 16 * 10
    program = torch.export.export(module.eval(), (torch.zeros(1, 3, 32, 32),))
    path = tmp_path / "small.pt2"
    torch.export.save(program, path)
    for other in (from_torch(program), from_torch(path), from_torch(str(path))):
        assert network_hash_of(other) == network_hash_of(graph)
    assert from_torch(path).name == "small"


def test_weights_need_no_data(torch: Any) -> None:
    graph = from_torch(network(torch, "meta"), torch.zeros(1, 3, 32, 32, device="meta"))
    assert graph_totals(graph).macs == 16 * 3 * 9 * 16 * 16 + 16 * 10


def test_what_cannot_be_read_is_told_in_one_line(torch: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"nothing")
    for model, inputs, words in (
        (3, (), "no PyTorch network"),
        (tmp_path / "absent.pt2", (), "no such file"),
        (broken, (), "not an exported program"),
        (network(torch), (), "example_inputs"),
        (network(torch), torch.zeros(1, 4, 32, 32), "example inputs fit"),
    ):
        with pytest.raises(ModelFileError, match=words) as error:
            from_torch(model, inputs)
        assert "\n" not in str(error.value)
