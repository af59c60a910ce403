"""The nearest of some names."""

from __future__ import annotations

import pytest
from latfarm_controller import zoo
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import did_you_mean, hint, nearest

PLATFORMS = ["local-onnxruntime1.31-fp32-1t", "local-litert2.3-fp32-1t", "jetson-tensorrt10.3-fp16"]


def test_the_nearest_names_come_first() -> None:
    assert nearest("local-onnxruntime1.13-fp32-1t", PLATFORMS)[0] == PLATFORMS[0]
    assert nearest("LOCAL-LITERT2.3-FP32-1T", PLATFORMS)[0] == PLATFORMS[1]


def test_a_part_of_a_name_is_near() -> None:
    assert nearest("tensorrt", PLATFORMS) == [PLATFORMS[2]]
    assert nearest("zz", PLATFORMS) == []


def test_messages() -> None:
    assert hint("tensorrt", PLATFORMS) == f"; did you mean {PLATFORMS[2]}?"
    assert hint("nothing-like-it", ["a", "b"]) == ""
    assert did_you_mean("nothing", ["a", "b"]) == "there are: a, b"
    assert did_you_mean("x", []) == "there is none yet"
    assert did_you_mean("?", [str(number) for number in range(20)]).endswith("and 12 more")


def test_a_family_of_the_zoo_that_is_nearly_named() -> None:
    with pytest.raises(UsageError, match=r"no zoo family 'mobilnet-v2'; did you mean mobilenet-v2"):
        zoo.find("mobilnet-v2")
