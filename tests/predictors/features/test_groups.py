"""Routes: which regressor predicts which kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from latfarm_predictors.features.groups import VIEW, Router, family_group
from latfarm_predictors.features.table import Table, as_table
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.testing.synthetic import random_kernels


def table(counts: dict[str, int]) -> Table:
    rng = np.random.default_rng(0)
    return as_table([workload(kernel) for kernel in random_kernels(rng, counts)])


def test_families_fall_into_groups() -> None:
    assert family_group("conv", "Conv+Relu") == "conv"
    assert family_group("global_pool", "GlobalAveragePool") == "pool"
    assert family_group("move", "Reshape") == "view"
    assert family_group("move", "Transpose") == "memory"
    assert family_group("other", "NonMaxSuppression") == "memory"


def test_few_grouped_convolutions_join_the_others_and_many_stand_alone() -> None:
    few, rows = Router.of(table({"conv": 20, "grouped_conv": 10}))
    assert set(rows) == {"conv"}
    assert few.route("grouped_conv", "Conv").group == "conv"
    many, rows = Router.of(table({"conv": 20, "grouped_conv": 40}))
    assert set(rows) == {"conv", "grouped_conv"}
    assert many.route("grouped_conv", "Conv").group == "grouped_conv"


def test_every_row_is_in_exactly_one_group() -> None:
    made = table({"conv": 9, "fc": 9, "eltwise": 9, "pool": 9, "lrn": 2})
    _, rows = Router.of(made)
    assert sorted(row for group in rows.values() for row in group) == list(range(len(made)))


def test_a_measured_op_is_predicted_as_itself() -> None:
    router, _ = Router.of(table({"conv": 10}))
    route = router.route("conv", "Conv+Relu")
    assert (route.group, route.types, route.source, route.doubt) == ("conv", ("Conv+Relu",), "", 0)
    assert router.unseen_tokens("conv", "Conv+Relu") == 0
    assert router.unseen_tokens("conv", "Conv+HardSigmoid+Mul") == 2


def test_stand_ins_come_from_the_family_then_from_similar_families() -> None:
    router, _ = Router.of(table({"conv": 10, "eltwise": 30}))
    sibling = router.route("eltwise", "Tanh")
    assert sibling.source == "fallback:family:eltwise"
    assert set(sibling.types) == {"Add", "Relu", "Sigmoid"}
    relative = router.route("norm", "BatchNormalization+Relu")
    assert relative.source == "fallback:nearest:eltwise"
    assert set(relative.types) == {"Add+Relu", "Relu+Relu", "Sigmoid+Relu"}
    assert relative.doubt > sibling.doubt > 0
    assert sibling.reason == relative.reason == ""
    assert router.route("conv", "ConvTranspose").types == ("Conv",)


def test_an_op_that_resembles_nothing_has_a_prediction_and_a_reason() -> None:
    router, _ = Router.of(table({"conv": 10}))
    unknown = router.route("other", "NonMaxSuppression")
    assert unknown.group == ""
    assert unknown.source == "fallback:analytic"
    assert "NonMaxSuppression" in unknown.reason
    assert "no softmax kernel" in router.route("softmax", "Softmax").reason


def test_an_unmeasured_view_takes_next_to_no_time_and_is_supported() -> None:
    router, _ = Router.of(table({"conv": 10}))
    route = router.route("move", "Reshape")
    assert route.source == VIEW
    assert route.reason == ""


def test_an_op_that_networks_run_in_no_time_takes_next_to_no_time_and_is_supported() -> None:
    router, _ = Router.of(table({"conv": 10, "eltwise": 30}))
    assert router.route("lrn", "LRN").source == "fallback:nearest:eltwise"
    free = replace(router, free=frozenset({("lrn", "LRN")}))
    route = free.route("lrn", "LRN")
    assert (route.group, route.source, route.reason) == ("", VIEW, "")
    assert free.route("norm", "BatchNormalization").source == "fallback:nearest:eltwise"


def test_a_router_survives_writing_and_reading() -> None:
    router, _ = Router.of(table({"conv": 10, "grouped_conv": 3, "eltwise": 5}))
    router = replace(router, free=frozenset({("lrn", "LRN"), ("move", "Split")}))
    data = router.to_json()
    assert Router.from_json(data) == router
    del data["free"]  # as in bundles from before this field existed
    assert Router.from_json(data) == replace(router, free=frozenset())
