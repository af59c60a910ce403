"""`latfarm train --since`: new rows touch their families, and nothing else; no rows, no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from latfarm_controller.errors import UsageError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.data_revision import RowChanges
from latfarm_controller.training.fit_bundle import TrainingInputs
from latfarm_controller.training.since import Since, inputs_since, read_since
from latfarm_controller.training.training import fit_model, read_inputs, trained_from
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.predict.kernel_estimates import estimate
from latfarm_predictors.predict.predictor import PlatformPredictor

from tests.controller.reports.toy import CAMPAIGN, PLATFORM, conv, depthwise, network
from tests.controller.training.test_foreign_rows import LAB, of_lab, taken_in
from tests.controller.training.toy_home import ToyHome, asked_networks, more_depthwise


class TrainedTwice(ToyHome):
    """A platform that was trained again after more depthwise convolutions were measured.

    Attributes:
        nothing: what there was to train before these were measured.
        inputs: what there was to train afterwards.
        entered: the second model.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.characterise()
        self.ask(asked_networks())
        self.train()
        first = self.folder / "0001.zip"
        self.nothing = [self.since(Since(first))]
        # New networks that people ask about train nothing, so they are no new rows either.
        self.ask([network("later", (5, 9), 17)], first=800)
        self.nothing += [self.since(Since(first)), self.since(Since(first, 1e9))]
        self.cover(more_depthwise(), "more", 2000.0)
        inputs = self.since(read_since(self.bundles, PLATFORM, "0001"))
        assert inputs is not None
        self.inputs = inputs
        self.entered = fit_model(self.bundles, inputs, promote=False)

    def since(self, since: Since) -> TrainingInputs | None:
        return inputs_since(self.store, self.bundles, PLATFORM, since)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedTwice]:
    made = TrainedTwice(tmp_path_factory.mktemp("home"))
    yield made
    made.store.close()


def kernel_ms(predictor: PlatformPredictor, graphs: list[Graph]) -> tuple[list[float], list[float]]:
    found = estimate(
        predictor.models, predictor.measured, [workload(Kernel(graph)) for graph in graphs]
    )
    return found.latency_ms.tolist(), found.sigma.tolist()


def test_without_new_rows_there_is_nothing_to_do(home: TrainedTwice) -> None:
    assert read_since(home.bundles, PLATFORM, "1") == Since(home.folder / "0001.zip")
    assert home.nothing == [None, None, None]


def test_only_the_families_of_new_rows_are_fitted_again(home: TrainedTwice) -> None:
    parent, entered = home.inputs.parent, home.entered
    assert parent is not None
    assert parent.changes.families == {"dwconv"}
    assert not parent.changes.networks
    assert not parent.changes.setting
    assert (entered.record.number, entered.record.parent) == ("0002", "0001")
    assert entered.record.state == "candidate"
    told = read_provenance(entered.path)
    assert told["parent"]["number"] == "0001"
    assert told["parent"]["bundle"] == load_bundle(home.folder / "0001.zip").bundle
    assert told["parent"]["changed"] == "dwconv"
    assert told["campaigns"] == ["more", CAMPAIGN]
    before, after = load_bundle(home.folder / "0001.zip"), load_bundle(entered.path)
    convs = [conv(12, 30, 18), conv(16, 26, 14), conv(40, 40, 9)]
    assert kernel_ms(before, convs) == kernel_ms(after, convs)
    wise = [depthwise(19, 14), *more_depthwise()]
    assert kernel_ms(before, wise) != kernel_ms(after, wise)
    assert after.confidence is not None
    assert before.confidence is not None
    assert len(after.confidence) == len(before.confidence) + 4


def test_a_time_tells_what_is_new(home: TrainedTwice) -> None:
    first = home.folder / "0001.zip"
    for time_s, families in ((1500.0, {"dwconv"}), (2000.0, {"dwconv"})):
        found = home.since(Since(first, time_s))
        assert found is not None
        assert found.parent is not None
        assert found.parent.changes.families == families
    # A model that knows these rows already learns them again, because that was asked for.
    second = Since(home.folder / "0002.zip", 1500.0)
    again = home.since(second)
    assert again is not None
    assert again.parent is not None
    assert again.parent.changes.families == {"dwconv"}
    assert home.since(Since(second.path, 2001.0)) is None
    # Before the characterisation everything is new, and all is fitted.
    whole = home.since(Since(first, 50.0))
    assert whole is not None
    assert whole.parent is not None
    assert whole.parent.changes.setting


def test_what_since_may_be(home: TrainedTwice) -> None:
    revision = read_provenance(home.folder / "0002.zip")["data"]["revision"]
    assert read_since(home.bundles, PLATFORM, revision).path.stem == "0002"
    in_use = home.folder / "0001.zip"
    assert read_since(home.bundles, PLATFORM, "7d", 1e6) == Since(in_use, 1e6 - 7 * 86400)
    assert read_since(home.bundles, PLATFORM, "1970-01-02") == Since(in_use, 86400.0)
    assert read_since(home.bundles, PLATFORM, "1970-01-01T01:00+01:00") == Since(in_use, 0.0)
    for text in ("yesterday", "r000000000000", ""):
        with pytest.raises(UsageError, match="give the number of a model, a revision"):
            read_since(home.bundles, PLATFORM, text)
    with pytest.raises(UsageError, match="no model '9'"):
        read_since(home.bundles, PLATFORM, "9")
    with pytest.raises(UsageError, match="no bundle for platform 'other'"):
        read_since(home.bundles, "other", "7d")


def test_all_rows_are_trained_without_since(home: TrainedTwice) -> None:
    assert trained_from(home.store, home.bundles, PLATFORM, added=True) == (
        "more",
        0,
        ("more", CAMPAIGN),
    )
    assert trained_from(home.store, home.bundles, PLATFORM) == (CAMPAIGN, 0, (CAMPAIGN,))


def test_a_bundle_of_an_older_version_needs_a_time(home: TrainedTwice, tmp_path: Path) -> None:
    told = read_provenance(home.folder / "0001.zip")
    del told["data"]
    old = tmp_path / PLATFORM / "0001.zip"
    save_bundle(load_bundle(home.folder / "0001.zip"), old, told)
    with pytest.raises(UsageError, match="does not tell on which rows it was trained"):
        inputs_since(home.store, tmp_path, PLATFORM, Since(old))
    found = inputs_since(home.store, tmp_path, PLATFORM, Since(old, 1500.0))
    assert found is not None
    assert found.parent is not None
    assert found.parent.changes.families == {"dwconv"}
    save_bundle(load_bundle(old), old, {**told, "campaign": "elsewhere"})
    with pytest.raises(UsageError, match="was made elsewhere"):
        inputs_since(home.store, tmp_path, PLATFORM, Since(old, 1500.0))


def test_two_trainings_from_the_same_rows_have_the_same_revision(home: TrainedTwice) -> None:
    first = read_provenance(home.folder / "0001.zip")["data"]
    second = read_provenance(home.folder / "0002.zip")["data"]
    assert first["revision"] != second["revision"]
    assert first["families"]["conv"] == second["families"]["conv"]
    assert first["families"]["dwconv"] != second["families"]["dwconv"]
    assert first["setting"] == second["setting"]
    assert np.unique([len(each["revision"]) for each in (first, second)]).tolist() == [13]


def test_networks_of_others_stay_in_a_model_that_is_trained_further(tmp_path: Path) -> None:
    """A parent that learned from another lab has no new rows without that lab's networks."""
    made = ToyHome(tmp_path)
    made.characterise()
    made.store.close()
    taken_in(tmp_path, made.store.path, LAB, of_lab())
    made.store = DuckDBStore(made.store.path)
    try:
        whole = read_inputs(
            made.store, PLATFORM, CAMPAIGN, bundles_dir=made.bundles, foreign=[LAB.source]
        )
        fit_model(made.bundles, whole, promote=True)
        first = Since(made.folder / "0001.zip")
        assert inputs_since(made.store, made.bundles, PLATFORM, first) is None
        made.cover(more_depthwise(), "more", 2000.0)
        for since in (first, replace(first, time_s=1500.0)):
            inputs = inputs_since(made.store, made.bundles, PLATFORM, since)
            assert inputs is not None
            assert inputs.parent is not None
            assert inputs.parent.changes == RowChanges(frozenset({"dwconv"}))
            assert inputs.foreign == whole.foreign
    finally:
        made.store.close()
