"""The agent's check of TFLite files accepts the files that our builder writes."""

from __future__ import annotations

import pytest
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.tflite_format.check import check
from latfarm_controller import builders, zoo

pytest.importorskip("ai_edge_litert", reason="the builder needs the schema that ships with it")

# These networks have all kinds of convolutions, branches, detectors and attention.
NETWORKS = (
    "squeezenet",
    "mobilenet-v3-small",
    "shufflenet-v2",
    "densenet121",
    "googlenet",
    "nasbench201@1",
    "synthetic@3",
    "yolov5n",
    "mobilevit-xs",
    "bert-tiny",
)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_our_files_are_sound(name: str, dtype: str) -> None:
    data = builders.build(zoo.build(name), "tflite", dtype)
    check(data, 4 << 30)
    with pytest.raises(RuntimeFailure, match="not a sound TFLite model"):
        check(data[: len(data) // 2])
