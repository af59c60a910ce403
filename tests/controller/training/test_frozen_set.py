"""The frozen set: chosen once by hashes, never trained on, and the judge of promotions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.errors import PromotionRefusedError, StoreError, UsageError
from latfarm_controller.training import entering
from latfarm_controller.training.entering import enter_model, promote_model, roll_back
from latfarm_controller.training.frozen_set import (
    FILE,
    choose_networks,
    frozen_set,
    read_frozen,
)
from latfarm_controller.training.gather import RowChoice, gather
from latfarm_controller.training.model_register import read_register
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle
from latfarm_predictors.errors import BundleError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from tests.controller.reports.toy import CAMPAIGN, PLATFORM, network_ms, networks
from tests.controller.training.toy_home import ASKED, ToyHome, asked_networks


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyHome]:
    made = ToyHome(tmp_path_factory.mktemp("home"))
    made.characterise()
    # One of the calibration networks was asked about too: it is trained on, so it judges nothing.
    made.ask([*asked_networks(), networks()[0]])
    made.train()
    yield made
    made.store.close()


def hashes(graphs: list[Graph]) -> set[str]:
    return {network_hash_of(graph) for graph in graphs}


@pytest.fixture
def folder(home: ToyHome, tmp_path: Path) -> Path:
    """A copy of the bundles, their register and the frozen set of the platform."""
    return Path(shutil.copytree(home.folder, tmp_path / "bundles" / PLATFORM))


def another(folder: Path, factor: float) -> Path:
    """A second bundle, for which a call takes that many times as long."""
    predictor = load_bundle(folder / "0001.zip")
    predictor.call_overhead_ms *= factor
    path = folder / "0002.zip"
    save_bundle(predictor, path, read_provenance(folder / "0001.zip"))
    return path


def test_networks_that_train_are_never_chosen(home: ToyHome) -> None:
    found = read_frozen(home.folder)
    assert found is not None
    assert found.hashes == hashes(asked_networks())
    assert len(found.networks) == ASKED
    assert found.hashes.isdisjoint(hashes(networks()))
    told = read_provenance(home.folder / "0001.zip")
    assert set(told["network_hashes"]) == hashes(networks())
    assert told["frozen_set"] == found.name


def test_it_is_chosen_once(home: ToyHome) -> None:
    before = read_frozen(home.folder)
    home.ask([replace(networks()[0], name="again"), networks()[1]], first=900)
    assert frozen_set(home.store, home.bundles, PLATFORM) == before


def test_the_choice_depends_on_hashes_alone(home: ToyHome, tmp_path: Path) -> None:
    other = ToyHome(tmp_path)
    try:
        other.characterise()
        other.ask(asked_networks()[::-1], first=700)
        chosen = choose_networks(other.store, PLATFORM)
    finally:
        other.store.close()
    known = read_frozen(home.folder)
    assert known is not None
    assert [n.network_hash for n in chosen] == [n.network_hash for n in known.networks]


def test_a_shared_host_has_a_frozen_set_of_what_can_be_trusted_there(tmp_path: Path) -> None:
    """There every measurement is unstable; one that scatters far more than others is left out."""
    shared = ToyHome(tmp_path)
    try:
        shared.characterise()
        shared.ask(asked_networks())
        rows = [
            (replace(m, unstable=True), graph)
            for m in shared.store.measurements(platform=PLATFORM)
            if (graph := shared.store.get_graph(m.graph_hash)) is not None
        ]
        wild, graph = rows[0]  # the newest one: an answer to a question
        rows[0] = (replace(wild, mad_ms=0.5 * (wild.latency_ms or 0.0)), graph)
        other = ToyHome(tmp_path / "other")
        try:
            other.store.add_measurements("all", rows)
            chosen = choose_networks(other.store, PLATFORM)
        finally:
            other.store.close()
    finally:
        shared.store.close()
    names = {network.measurement.request_id for network in chosen}
    assert wild.purpose == "query"
    assert len(hashes(asked_networks()) & {network.network_hash for network in chosen}) == ASKED - 1
    assert wild.request_id not in names
    assert all(network.measurement.unstable for network in chosen)


def test_too_few_networks_are_no_set(tmp_path: Path) -> None:
    few = ToyHome(tmp_path)
    try:
        few.characterise()
        few.ask(asked_networks()[:7])
        assert frozen_set(few.store, few.bundles, PLATFORM) is None
        assert not few.folder.exists()
    finally:
        few.store.close()


def test_a_campaign_that_measures_a_frozen_network_does_not_train_on_it(home: ToyHome) -> None:
    every = gather(home.store, PLATFORM, CAMPAIGN)
    barred = frozenset(hashes(networks()[:3]))
    found = gather(home.store, PLATFORM, CAMPAIGN, rows=RowChoice(barred=barred))
    assert len(found.networks) == len(every.networks) - 3
    assert hashes([sample.graph for sample in found.networks]).isdisjoint(barred)
    assert found.left_out["frozen"] == 3
    assert "frozen" not in every.left_out


def test_scores_are_those_of_the_measurements(home: ToyHome) -> None:
    found = read_frozen(home.folder)
    assert found is not None
    predictor = load_bundle(home.folder / "0001.zip")
    scores = found.judge(predictor)
    for frozen in found.networks:
        answer = predictor.predict(frozen.graph, 0.9)
        measured = 1.01 * network_ms(frozen.graph)
        error = abs(answer.latency_ms / measured - 1.0)
        assert scores.errors[frozen.network_hash] == pytest.approx(error)
        inside = answer.interval_ms[0] <= measured <= answer.interval_ms[1]
        assert scores.covered[frozen.network_hash] == inside
    kept = read_register(home.folder).models["0001"].scores
    assert kept == scores.to_json()


def test_a_worse_model_is_kept_as_a_candidate_and_promoted_only_by_force(folder: Path) -> None:
    bundles = folder.parent
    entered = enter_model(another(folder, 30.0), promote=True)
    assert not entered.promoted
    assert not entered.verdict.allowed
    assert "was not promoted: its mean error is" in entered.sentences[-1]
    assert read_register(folder).promoted == "0001"
    with pytest.raises(PromotionRefusedError, match=r"model 0002 of .* is not promoted: its mean"):
        promote_model(bundles, PLATFORM)
    with pytest.raises(UsageError, match="--force needs --reason"):
        promote_model(bundles, PLATFORM, force=True, reason=" ")
    assert read_register(folder).promoted == "0001"
    forced = promote_model(bundles, PLATFORM, "2", force=True, reason="the board was moved")
    assert forced.promoted
    change = read_register(folder).history[-1]
    assert (change.reason, change.forced, change.replaced) == ("the board was moved", True, "0001")
    assert roll_back(bundles, PLATFORM, reason="moved back") == ("0002", "0001")
    assert read_register(folder).history[-1].reason == "moved back"


def test_a_model_that_is_not_worse_is_promoted(folder: Path) -> None:
    entered = enter_model(another(folder, 1.0), promote=True)
    assert entered.promoted
    assert entered.verdict.judged
    with pytest.raises(UsageError, match="has no candidate to promote; name one"):
        promote_model(folder.parent, PLATFORM)
    told = json.loads(json.dumps(entered.to_json()))
    assert told["scores"]["networks"] == ASKED
    assert told["state"] == "promoted"
    assert "model 0002 is in use" in entered.sentences


def test_a_bundle_that_cannot_be_read_is_never_put_in_use(folder: Path) -> None:
    path = folder / "0009.zip"
    path.write_bytes(b"PK" + bytes(50))
    with pytest.raises(BundleError):
        enter_model(path, promote=True)
    with pytest.raises(BundleError):
        promote_model(folder.parent, PLATFORM, "9", force=True, reason="why not")
    assert read_register(folder).promoted == "0001"


@pytest.mark.parametrize("change", ["", "{}", "[1]", "name", "version", "latency"])
def test_a_changed_file_is_refused(home: ToyHome, tmp_path: Path, change: str) -> None:
    told = json.loads((home.folder / FILE).read_text())
    if change == "latency":
        told["networks"][0]["measurement"]["request_id"] = "another"
    elif change:
        told[change] = "x"
    text = change if change in ("", "{}", "[1]") else json.dumps(told)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreError, match=r"frozen\.json is no frozen set .*move it away"):
        read_frozen(tmp_path)


def test_discarded_answers_choose_no_fingerprint(tmp_path: Path) -> None:
    """A board that was quarantined has measured most networks, under another fingerprint."""
    made = ToyHome(tmp_path)
    try:
        rows = [
            (replace(m, request_id=f"{board}-{m.request_id}", board_id=board, fingerprint=board), g)
            for board in ("good", "bad")
            for m, g in _answers(made, tmp_path)[: ASKED - 2 if board == "good" else ASKED]
        ]
        made.store.add_measurements("asked", rows)
        made.store.discard_measurements("bad", 0.0, "drifted")
        chosen = choose_networks(made.store, PLATFORM)
    finally:
        made.store.close()
    assert len(chosen) == ASKED - 2
    assert {each.measurement.fingerprint for each in chosen} == {"good"}


def _answers(made: ToyHome, folder: Path) -> list[tuple[Measurement, Graph]]:
    """The answers to all questions, as another home has them."""
    other = ToyHome(folder / "other")
    try:
        other.ask(asked_networks())
        graphs = {hash_of(graph): graph for graph in asked_networks()}
        return [(m, graphs[m.graph_hash]) for m in other.store.measurements()]
    finally:
        other.store.close()


def test_a_model_that_is_removed_meanwhile_is_not_promoted(
    home: ToyHome, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = another(folder, 1.0)

    def load_and_lose(chosen: Path) -> object:
        found = load_bundle(chosen)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(entering, "load_bundle", load_and_lose)
    with pytest.raises(UsageError, match="there is no model '0002'; the models here are: 0001"):
        promote_model(folder.parent, PLATFORM, "2")
    assert read_register(folder).promoted == "0001"
