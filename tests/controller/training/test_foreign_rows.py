"""Networks that others measured train a model only if somebody asks, and the bundle names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_controller.errors import UsageError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.duckdb_file import DuckDBFile
from latfarm_controller.store.exchange.exporting import Selection, export
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.importing import Importer
from latfarm_controller.store.exchange.reading import LatfarmReader
from latfarm_controller.store.platform_copy import copy_platform
from latfarm_controller.training.fit_bundle import fit_bundle
from latfarm_controller.training.foreign_rows import DRAW, NO_FOREIGN, foreign_networks, sources_of
from latfarm_controller.training.training import read_inputs
from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.slow_core import AS_TOLD

from tests.controller.reports.toy import CAMPAIGN, PLATFORM, measured, network, network_ms, networks
from tests.controller.training.toy_home import ToyHome

LAB = Origin("a lab", "CC-BY-4.0", "median of 50 runs")
OTHER = Origin("another lab", "CC0", "mean")


def of_lab() -> list[Graph]:
    """Networks that the first lab measured; this farm measured the last one, too."""
    return [
        *(network(f"lab-{n}", (10 + 3 * n, 15 + 2 * n), 10 + n) for n in range(5)),
        networks()[0],
    ]


def taken_in(folder: Path, path: Path, origin: Origin, graphs: list[Graph]) -> None:
    """Import what another farm measured: networks, and a kernel."""
    name = origin.source.replace(" ", "-")
    theirs = folder / f"{name}.duckdb"
    rows = [
        (measured(graph, "query", network_ms(graph) * 1.02, 900 + place), graph)
        for place, graph in enumerate(graphs)
    ]
    rows.append((measured(graphs[0], "kernel", 1.0, 990), graphs[0]))
    with DuckDBStore(theirs) as store:
        store.add_measurements(name, rows)
    file = DuckDBFile(theirs)
    export(file, folder / name, origin, Selection(), "csv")
    file.close()
    file = DuckDBFile(path)
    try:
        Importer(file, LatfarmReader(folder / name), origin).run()
    finally:
        file.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyHome]:
    """A characterised platform, and rows of two labs."""
    folder = tmp_path_factory.mktemp("home")
    made = ToyHome(folder)
    made.characterise()
    made.store.close()
    taken_in(folder, folder / "store.duckdb", LAB, of_lab())
    taken_in(folder, folder / "store.duckdb", OTHER, [network("other", (9, 9), 12)])
    made.store = DuckDBStore(folder / "store.duckdb")
    yield made
    made.store.close()


def test_a_copy_of_the_platform_has_them_too(home: ToyHome, tmp_path: Path) -> None:
    copy_platform(home.store, PLATFORM, tmp_path / "copy" / "store.duckdb")
    asked = foreign_networks(home.store, PLATFORM, ["a lab"], slow_core=AS_TOLD)
    with DuckDBStore(tmp_path / "copy" / "store.duckdb") as copy:
        assert foreign_networks(copy, PLATFORM, ["a lab"], slow_core=AS_TOLD) == asked


def test_only_the_sources_that_are_asked_for_are_read(home: ToyHome) -> None:
    found = foreign_networks(home.store, PLATFORM, ["a lab"], slow_core=AS_TOLD)
    assert sorted(each.graph.name for each in found.samples) == sorted(g.name for g in of_lab())
    assert [(each.source, each.licence, each.method, each.networks) for each in found.origins] == [
        ("a lab", "CC-BY-4.0", "median of 50 runs", 6)
    ]
    judge = of_lab()[2]
    fewer = foreign_networks(
        home.store,
        PLATFORM,
        ["a lab", "another lab"],
        slow_core=AS_TOLD,
        barred=frozenset({network_hash_of(judge)}),
    )
    names = {each.graph.name for each in fewer.samples}
    assert judge.name not in names
    assert "other" in names
    assert foreign_networks(home.store, PLATFORM, [], slow_core=AS_TOLD) is NO_FOREIGN


def test_a_source_that_measured_nothing_is_refused(home: ToyHome) -> None:
    with pytest.raises(UsageError, match=r"a lab, another lab.*did you mean another lab"):
        foreign_networks(home.store, PLATFORM, ["another labs"], slow_core=AS_TOLD)


def test_a_bundle_names_whose_rows_it_was_trained_with(home: ToyHome, tmp_path: Path) -> None:
    assert read_inputs(home.store, PLATFORM, CAMPAIGN).foreign is NO_FOREIGN
    inputs = read_inputs(home.store, PLATFORM, CAMPAIGN, foreign=["a lab"])
    # The network that this farm measured itself is not taken from others.
    assert len(inputs.foreign.samples) == 5
    own = len(inputs.ways.tried[inputs.ways.own].networks)
    fit_bundle(inputs, tmp_path / "bundle.zip")
    told = read_provenance(tmp_path / "bundle.zip")
    assert told["foreign"] == [
        {"source": "a lab", "licence": "CC-BY-4.0", "method": "median of 50 runs", "networks": 5}
    ]
    assert sources_of(told) == ("a lab",)
    assert len(told["networks"]) == own + 5
    assert {network_hash_of(graph) for graph in of_lab()} <= set(told["network_hashes"])
    assert told["calibration_draw"] == DRAW
