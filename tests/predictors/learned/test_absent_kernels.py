"""Kernels that networks run in no time, found in profiles and used in predictions."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts, split
from latfarm_predictors.learned.absent_kernels import (
    ABSENT,
    AbsentKernels,
    Neighbourhood,
    neighbourhoods,
)
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.source_words import in_words
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.samples import KernelSample, NetworkSample
from latfarm_predictors.testing.synthetic import RULES

IN_PLACE = Neighbourhood("Concat", ("Conv",), read_again=False)
COPIED = Neighbourhood("Concat", ("Conv",), read_again=True)


def joined(width: int, *, read_again: bool) -> Graph:
    """Two convolutions whose results are joined; one of them may be read elsewhere, too."""
    b = GraphBuilder(f"joined-{width}-{read_again}")
    x = b.input((1, 8, 16, 16))
    left, right = b.conv(x, width, 3), b.conv(x, width, 1)
    both = b.concat([left, right])
    return b.build([both, b.max_pool(left, 2)] if read_again else [both])


def profiled(graph: Graph, concat_ms: float) -> list[KernelSample]:
    """The kernels of a network, of which a concatenation takes the time that is given."""
    return [
        KernelSample(
            kernel,
            concat_ms if kernel.type == "Concat" else 1.0,
            insight="profile",
            network=hash_of(graph),
        )
        for kernel in split(graph, FusionRules.none())
    ]


def seen() -> list[list[KernelSample]]:
    """Networks in which concatenations take time where another kernel reads a part of them."""
    return [
        profiled(joined(width, read_again=again), 0.25 if again else 0.0)
        for width in (8, 16, 24, 32)
        for again in (False, True)
    ]


def test_a_neighbourhood_is_the_op_what_made_its_operands_and_who_else_reads_them() -> None:
    for again, expected in ((False, IN_PLACE), (True, COPIED)):
        graph = joined(8, read_again=again)
        parts = find_parts(graph, FusionRules.none())
        found = dict(zip([part.main_op for part in parts], neighbourhoods(parts), strict=True))
        assert found["Concat"] == expected
        assert found["Conv"] == Neighbourhood("Conv", ("",), read_again=True)


def test_profiles_tell_where_a_kernel_takes_no_time() -> None:
    absent = AbsentKernels.of(seen(), FusionRules.none())
    assert absent.any
    for again in (False, True):
        parts = find_parts(joined(48, read_again=again), FusionRules.none())
        gone = dict(zip([p.main_op for p in parts], absent.among(parts), strict=True))
        assert gone["Concat"] is not again
        assert not gone["Conv"]


def test_two_kernels_without_time_are_too_few() -> None:
    few = [profiled(joined(width, read_again=False), 0.0) for width in (8, 16)]
    assert not AbsentKernels.of(few, FusionRules.none()).any


def test_an_op_that_never_takes_time_takes_none_among_other_neighbours_either() -> None:
    absent = AbsentKernels.of(seen()[::2], FusionRules.none())
    assert absent.always == {"Concat"}
    b = GraphBuilder("other")
    x = b.input((1, 8, 16, 16))
    parts = find_parts(b.build([b.concat([b.max_pool(x, 2), b.avg_pool(x, 2)])]), RULES)
    assert [p.main_op for p, gone in zip(parts, absent.among(parts), strict=True) if gone] == [
        "Concat"
    ]
    assert not AbsentKernels.of(seen(), FusionRules.none()).always, "half of them take time"


def test_it_is_read_back_and_nonsense_is_refused() -> None:
    absent = AbsentKernels.of(seen(), FusionRules.none())
    assert AbsentKernels.from_json(json.loads(json.dumps(absent.to_json()))) == absent
    assert not AbsentKernels.from_json(None).any
    refused: list[object] = [
        [],
        {"told": {}, "always": []},
        {"told": [["Add", "Conv", True, True]], "always": []},
    ]
    for wrong in refused:
        with pytest.raises(TypeError):
            AbsentKernels.from_json(wrong)
    with pytest.raises(ValueError, match="neighbourhoods"):
        AbsentKernels.from_json({"told": [], "always": ["Add"] * 30_000})


@pytest.fixture(scope="module")
def joining(
    kernel_samples: list[KernelSample], network_samples: list[NetworkSample]
) -> PlatformPredictor:
    """A predictor of a platform that writes concatenations in place where it can."""
    alone = [
        KernelSample(kernel, 0.5, 0.01)
        for width in (8, 12, 16, 20, 24, 28, 32, 40, 48)
        for kernel in split(joined(width, read_again=False), RULES)
        if kernel.type == "Concat"
    ]
    samples = PlatformSamples("p", RULES, [*kernel_samples, *alone], network_samples, places=seen())
    return fit_predictor(samples)


def test_a_prediction_adds_nothing_for_such_kernels(joining: PlatformPredictor) -> None:
    beside, in_place = joined(20, read_again=True), joined(20, read_again=False)
    found = {}
    for graph in (beside, in_place):
        answer = joining.predict(graph)
        found[graph.name] = next(k for k in answer.kernels if k.type == "Concat")
    taken, gone = found[beside.name], found[in_place.name]
    assert (gone.latency_ms, gone.source) == (joining.models.floor_ms, ABSENT)
    assert taken.latency_ms == pytest.approx(0.5, rel=0.2)
    assert in_words(gone.source) == "takes no time here, as profiles of networks show"
    # the order of questions, and what is remembered, change nothing
    again = predictor_of(state_of(joining))
    assert again.predict_many([in_place, beside])[::-1] == [
        predictor_of(state_of(joining)).predict(graph) for graph in (beside, in_place)
    ]
    # a network's figures are computed in another way than its answer
    fixed_ms = joining.figures(in_place).warm_ms - sum(k.latency_ms for k in answer.kernels)
    assert fixed_ms == pytest.approx(joining.fixed_ms(boundary_mb(in_place)))


def test_bundles_with_such_kernels_are_refused_by_older_programs(
    joining: PlatformPredictor, predictor: PlatformPredictor, tmp_path: Path
) -> None:
    for name, made in (("joining", joining), ("other", predictor)):
        path = tmp_path / f"{name}.zip"
        save_bundle(made, path)
        with ZipFile(path) as archive:
            assert json.loads(archive.read("bundle.json"))["version"] == 11
        graph = joined(20, read_again=False)
        assert load_bundle(path).predict(graph).latency_ms == made.predict(graph).latency_ms
