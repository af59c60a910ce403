"""nn-Meter's dataset: distinct graphs, the same for a seed, lazily made."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.zoo.draws import dataset as dataset_module
from latfarm_controller.zoo.draws.dataset import FAMILIES, PER_FAMILY, dataset, family_variants
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "zoo_speed.py"


def test_it_has_the_papers_families_and_size() -> None:
    assert len(FAMILIES) * PER_FAMILY == 26_000
    assert set(FAMILIES) <= set(zoo.families())
    lines = {line for name in FAMILIES for line in zoo.families()[name].lineage}
    assert lines >= {
        *("alexnet", "vgg", "densenet", "resnet", "squeezenet", "inception", "mobilenet"),
        *("shufflenet", "mnasnet", "proxylessnas", "nasbench"),
    }


def test_every_family_gives_distinct_graphs() -> None:
    graphs = list(dataset(seed=0, per_family=5))
    assert len(graphs) == 5 * len(FAMILIES)
    assert len({hash_of(graph) for graph in graphs}) == len(graphs)
    assert len({graph.name for graph in graphs}) == len(graphs)
    assert graphs[0].name == "alexnet-0"
    assert graphs[-1].name == "nasbench201-4"
    for graph in graphs:
        size = 32 if graph.name.startswith("nasbench201") else 224
        assert graph.type_of(graph.inputs[0]).shape == (1, 3, size, size)


def test_a_smaller_dataset_begins_a_larger_one() -> None:
    names = ["nasbench201", "mobilenet-v1"]
    large = list(dataset(seed=3, per_family=8, families=names))
    small = list(dataset(seed=3, per_family=3, families=names[::-1]))
    assert small == large[8:11] + large[:3]


def test_seeds_and_batches_make_other_graphs() -> None:
    def hashes(seed: int, batch: int = 1) -> set[str]:
        return {hash_of(g) for g in dataset(seed, 4, ["resnet18"], batch)}

    assert hashes(1) == hashes(1)
    assert not hashes(1) & hashes(2)
    eights = list(dataset(1, 4, ["resnet18"], batch=8))
    assert all(g.type_of("input").shape[0] == 8 for g in eights)
    assert not hashes(1) & {hash_of(g) for g in eights}


def test_isomorphic_cells_count_once() -> None:
    cells = list(family_variants("nasbench201", 150))
    assert len({hash_of(graph) for graph in cells}) == 150
    # Without the check many of as many draws would be the same network under another name.
    draws = {hash_of(variant("nasbench201", seed, rule="nn-meter")) for seed in range(150)}
    assert len(draws) < 150


def test_a_family_with_too_few_networks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "_PATIENCE", 20)
    made = family_variants("nasbench201@17", 2)
    assert hash_of(next(made)) == hash_of(zoo.build("nasbench201@17"))
    with pytest.raises(UsageError, match="no 2 distinct variants"):
        next(made)


def test_graphs_that_cannot_be_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def now_and_then(*arguments: object, **options: object) -> Graph:
        if next(calls) % 2:
            raise GraphError("a kernel outgrew its map")
        return variant(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(dataset_module, "variant", now_and_then)
    graphs = list(family_variants("vgg11", 5))
    assert [graph.name for graph in graphs] == [f"vgg11-{number}" for number in range(5)]
    assert len({hash_of(graph) for graph in graphs}) == 5


def test_what_can_never_be_built_is_told() -> None:
    with pytest.raises(GraphError):
        next(family_variants("alexnet", 1, resolutions=(4,)))


def test_it_is_lazy_but_checks_names_at_once() -> None:
    assert next(dataset(0, 10**9, ["alexnet"])).name == "alexnet-0"
    assert list(dataset(0, 0, ["alexnet"])) == []
    with pytest.raises(UsageError, match="no zoo family"):
        dataset(0, 1, ["alexnet", "lenet"])


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("latfarm_zoo_speed", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks itself up by name.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def test_the_benchmark_counts_what_it_made(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main(["--per-family", "2", "--families", "alexnet", "nasbench201"])
    found = json.loads(capsys.readouterr().out)
    assert [row["graphs"] for row in found["families"]] == [2, 2]
    assert found["families"][0]["nodes"] == len(zoo.build("alexnet").nodes)
    assert found["graphs"] == 4
    assert found["dataset_graphs"] == 26_000
    assert not found["dataset_measured"]
    assert found["made_per_s"] > found["made_and_hashed_per_s"] > 0
