"""Routes: which regressor predicts which kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.groups import (
    VIEW,
    Router,
    broad_group,
    family_group,
    joined_group,
)
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
    assert family_group("move", "Transpose") == "move"
    assert family_group("attention", "Attention") == "matmul"


def test_campaigns_count_all_families_without_a_listed_group_as_one() -> None:
    assert broad_group("move", "Transpose") == broad_group("softmax", "Softmax") == "memory"
    assert broad_group("other", "NonMaxSuppression") == "memory"
    assert broad_group("move", "Reshape") == "view"
    assert broad_group("conv", "Conv") == "conv"


def test_a_family_with_enough_kernels_has_a_regressor_of_its_own() -> None:
    router, rows = Router.of(table({"conv": 9, "eltwise": 40, "softmax": 30, "norm": 29, "lrn": 1}))
    assert {name: len(found) for name, found in rows.items()} == {
        "conv": 9,
        "eltwise": 40,
        "softmax": 30,
        "memory": 30,
    }
    assert router.route("softmax", "Softmax").group == "softmax"
    assert router.route("norm", "BatchNormalization").group == "memory"
    assert router.route("lrn", "LRN").group == "memory"
    assert router.route("eltwise", "Tanh").group == "eltwise"  # others of its family stand in


def test_too_few_kernels_of_several_families_join_the_family_with_the_most() -> None:
    router, rows = Router.of(table({"eltwise": 60, "norm": 35, "lrn": 8, "softmax": 4}))
    assert {name: len(found) for name, found in rows.items()} == {"memory": 72, "norm": 35}
    assert router.route("eltwise", "Relu").group == router.route("lrn", "LRN").group == "memory"
    assert router.route("norm", "BatchNormalization").group == "norm"


def test_few_kernels_join_a_family_that_computes_rather_than_moves() -> None:
    _, rows = Router.of(table({"eltwise": 40, "concat": 90, "lrn": 5}))
    assert {name: len(found) for name, found in rows.items()} == {"memory": 45, "concat": 90}
    _, rows = Router.of(table({"concat": 90, "lrn": 5}))
    assert {name: len(found) for name, found in rows.items()} == {"memory": 95}


def test_the_groups_do_not_depend_on_the_order_of_kernels() -> None:
    made = table({"eltwise": 40, "norm": 40, "lrn": 5, "softmax": 31})
    router, rows = Router.of(made)
    order = np.random.default_rng(1).permutation(len(made))
    other, shuffled = Router.of(made.take(order))
    assert other.joined == router.joined
    assert {name: len(found) for name, found in shuffled.items()} == {
        name: len(found) for name, found in rows.items()
    }


def test_families_are_learned_apart_on_each_device() -> None:
    made = table({"conv": 90, "eltwise": 40, "softmax": 35, "lrn": 12, "norm": 3})
    devices = ["cpu" if f in ("softmax", "lrn", "norm") else "npu" for f in made.families]
    router, rows = Router.of(made, devices)
    assert set(rows) == {"conv", "eltwise", "memory@cpu"}
    assert router.route("softmax", "Softmax").group == "memory@cpu"
    assert router.route("eltwise", "Add").group == "eltwise"


def older(router: Router) -> Router:
    """The router as versions before single families had groups would have written it."""
    names = {"conv": "conv", "memory": "memory", "memory@cpu": "memory@cpu"}
    return replace(router, joined=names)


def test_a_router_of_an_older_version_keeps_all_such_families_in_one_group() -> None:
    made = table({"conv": 90, "eltwise": 40, "softmax": 35, "lrn": 12})
    devices = ["cpu" if family == "lrn" else "npu" for family in made.families]
    router = older(Router.of(made, devices)[0])
    assert router.route("softmax", "Softmax").group == "memory"
    assert router.route("lrn", "LRN").group == "memory@cpu"
    assert router.route("eltwise", "Tanh").group == "memory"
    assert router.route("norm", "BatchNormalization").group == "memory"  # element-wise ops stand in
    assert router.route("conv", "Conv").group == "conv"
    assert Router.from_json(router.to_json()) == router


def test_a_router_that_lacks_the_group_of_a_measured_op_is_refused() -> None:
    router = replace(Router.of(table({"conv": 10, "eltwise": 9}))[0], joined={"conv": "conv"})
    with pytest.raises(KeyError, match="eltwise"):
        router.route("eltwise", "Add")


def test_the_group_of_a_baseline_is_found_in_new_and_old_names() -> None:
    assert joined_group({"softmax": "softmax"}, "softmax", "Softmax") == "softmax"
    assert joined_group({"softmax": "memory"}, "softmax", "Softmax") == "memory"
    assert joined_group({"memory": "memory"}, "softmax", "Softmax") == "memory"
    assert joined_group({"conv": "conv"}, "softmax", "Softmax") == ""


def test_few_grouped_convolutions_join_the_others_and_many_stand_alone() -> None:
    few, rows = Router.of(table({"conv": 20, "grouped_conv": 79}))
    assert set(rows) == {"conv"}
    assert few.route("grouped_conv", "Conv").group == "conv"
    many, rows = Router.of(table({"conv": 20, "grouped_conv": 80}))
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
