"""nn-Meter's Tables 3 and 4 from end to end: times to rules to the kernels of a network.

Table 4 lists ResNet-18's kernels on three back ends. Section 4.2 prints the rules of the GPU,
and of the CPU's and the VPU's that "conv_add" is false. What no rule of the text says is taken as
not fused (for the CPU and the VPU: as on the GPU). The rows that rest on that are named in
`UNSTATED`, and the FC's, before which a view ends every kernel, rests on no rule at all.
"""

from __future__ import annotations

from collections import Counter

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.fusion.fusion import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.testing import SimulatedPlatform, drive
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.fusion import FusionRules, Verdict
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.measurement import Measurement

BN = "BatchNormalization"
# Section 4.2: "pool_add": True, "add_relu": True, "pool_conv": False, "conv_bn": True,
# "conv_relu": True, "conv_conv": False, "conv_add": True, multi-inbound 1, multi-outbound 0.
PRINTED: dict[tuple[str, str], Verdict] = {
    ("MaxPool", "Add"): "fused",
    ("Add", "Relu"): "fused",
    ("MaxPool", "Conv"): "separate",
    ("Conv", BN): "fused",
    ("Conv", "Relu"): "fused",
    ("Conv", "Conv"): "separate",
    ("Conv", "Add"): "fused",
}
# Table 3, in microseconds: pool, relu, both, and whether they run as one.
TABLE_3 = {
    "gpu": (5.08, 3.50, 6.00, True),
    "vpu": (13.0, 26.0, 16.0, True),
    "cpu": (23.60, 0.81, 24.48, False),
}
TABLE_4 = {
    "gpu": {
        f"Conv+{BN}+Relu": 9,
        "MaxPool": 1,
        f"Conv+{BN}+Add+Relu": 8,
        f"Conv+{BN}": 3,
        "GlobalAveragePool": 1,
        "Gemm": 1,
    },
    "cpu": {
        f"Conv+{BN}+Relu": 9,
        "MaxPool": 1,
        f"Conv+{BN}": 11,
        "Add+Relu": 8,
        "GlobalAveragePool": 1,
        "Gemm": 1,
    },
}
TABLE_4["vpu"] = TABLE_4["cpu"]

UNSTATED: dict[str, list[tuple[str, str]]] = {
    # No rule of the text names the average pool; it reads an add's kernel or a convolution's.
    "GlobalAveragePool": [("Add", "GlobalAveragePool"), ("Conv", "GlobalAveragePool")],
    # The pool reads a Conv+bn+relu kernel: whether a convolution takes in a pool is not said.
    "MaxPool": [("Conv", "MaxPool")],
    # Said of the GPU only: that it holds on the CPU and the VPU follows from this very row.
    "Add+Relu": [("Add", "Relu")],
}


def rules_of(backend: str) -> FusionRules:
    """The printed rules; Table 3's pair; of the CPU and the VPU without conv_add."""
    rules = FusionRules(pairs=PRINTED, multi_inbound=1, multi_outbound=0, platform=backend)
    pool_us, relu_us, both_us, _ = TABLE_3[backend]
    saves = pool_us + relu_us - both_us > 0.5 * min(pool_us, relu_us)
    rules = rules.replace_pairs({("MaxPool", "Relu"): "fused" if saves else "separate"})
    return rules if backend == "gpu" else rules.replace_pairs({("Conv", "Add"): "separate"})


def resnet18() -> Graph:
    """As published, its batch-norms kept: exporters fold them, the paper counts them."""
    b = GraphBuilder("resnet18")

    def conv(x: str, channels: int, kernel: int, stride: int = 1) -> str:
        return b.batch_norm(b.conv(x, channels, kernel, stride))

    x = b.max_pool(b.relu(conv(b.input((1, 3, 224, 224)), 64, 7, 2)), 3, 2, "same")
    for channels in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if channels > 64 and block == 0 else 1
            y = conv(b.relu(conv(x, channels, 3, stride)), channels, 3)
            x = b.relu(b.add(y, conv(x, channels, 1, stride) if stride == 2 else x))
    return b.build([b.fc(b.flatten(b.global_avg_pool(x)), 1000)])


def kernels(rules: FusionRules) -> Counter[str]:
    """Kernels by type; a view is no kernel of the paper's."""
    return Counter(k.type.removesuffix("+Flatten") for k in split(resnet18(), rules))


@pytest.mark.parametrize("backend", TABLE_4)
def test_table_4_from_the_printed_rules(backend: str) -> None:
    found = kernels(rules_of(backend))
    assert found == TABLE_4[backend]
    assert sum(found.values()) == {"gpu": 23, "cpu": 31, "vpu": 31}[backend]


def test_the_network_is_the_zoos() -> None:
    ours, published = resnet18(), zoo.build("resnet18")
    assert macs_of(ours) == macs_of(published)
    count = Counter(node.op for node in ours.nodes)
    assert (count["Conv"], count["Add"], count["Relu"], count["Gemm"]) == (20, 8, 17, 1)


@pytest.mark.parametrize("backend", TABLE_4)
@pytest.mark.parametrize("row", UNSTATED)
def test_rows_that_no_printed_rule_gives_change_with_what_is_not_said(
    backend: str, row: str
) -> None:
    """The other choice gives another table: these rows are assumptions, and known as such."""
    rules = rules_of(backend)
    if row == "Add+Relu" and backend == "gpu":
        assert row not in TABLE_4[backend]  # there an add runs within the convolution before it
        return
    other: Verdict = "separate" if row == "Add+Relu" else "fused"
    changed = rules.replace_pairs(dict.fromkeys(UNSTATED[row], other))
    assert kernels(changed) != TABLE_4[backend]


@pytest.mark.parametrize("backend", TABLE_3)
def test_table_3s_times_give_its_rules_through_the_whole_detection(backend: str) -> None:
    pool_us, relu_us, both_us, fused = TABLE_3[backend]

    def measure(request: MeasurementRequest) -> Measurement:
        ops = [node.op for node in request.graph.nodes]
        known = {("MaxPool",): pool_us, ("Relu",): relu_us, ("MaxPool", "Relu"): both_us}
        wide = request.graph.type_of(request.graph.outputs[0]).elements > 4
        took_us = known.get(tuple(ops), len(ops) * pool_us) if wide else 0.01
        platform = SimulatedPlatform(rules=FusionRules())
        answer = platform.measure(request).to_json()
        return Measurement.from_json({**answer, "latency_ms": took_us / 1e3, "mad_ms": 0.0})

    # The table prints times of a pair, none of a chain.
    options = FusionOptions(
        pairs=[("max_pool", "relu")], sizes=["small"], profile=False, chains=False
    )
    for method in ("latfarm", "paper"):
        campaign = FusionCampaign(backend, options.model_copy(update={"method": method}))
        drive(campaign, measure)
        assert campaign.detected().pairs == {("MaxPool", "Relu"): "fused" if fused else "separate"}


@pytest.mark.parametrize("backend", ["gpu", "cpu"])
def test_table_4_from_detected_rules(backend: str) -> None:
    """Times of a platform that fuses as the back end does, to rules, to its column of Table 4."""
    platform = SimulatedPlatform(rules=rules_of(backend), noise=0.01)
    pairs = [
        *(("conv", "bn"), ("conv", "relu"), ("conv", "add"), ("conv", "conv"), ("add", "relu")),
        *(("max_pool", "conv"), ("max_pool", "add"), ("max_pool", "relu"), ("conv", "max_pool")),
        ("relu", "global_pool"),
    ]
    campaign = FusionCampaign(backend, FusionOptions(pairs=pairs, profile=False))
    drive(campaign, platform.measure)
    assert kernels(campaign.rules()) == TABLE_4[backend]
