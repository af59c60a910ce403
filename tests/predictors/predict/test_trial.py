"""The trial of kernel times is out of sample: it learns nothing from kernels of its networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.predict.fitting import PlatformSamples
from latfarm_predictors.predict.trial import left_out_errors
from latfarm_predictors.samples import KernelSample, NetworkSample
from latfarm_predictors.testing.synthetic import RULES


def samples_of(
    kernels: Sequence[KernelSample], networks: Sequence[NetworkSample]
) -> PlatformSamples:
    return PlatformSamples("p", RULES, list(kernels), list(networks))


@pytest.mark.parametrize("where", ["", "another network", "itself"])
def test_kernels_of_the_networks_that_judge_are_not_learned_from(
    where: str, kernel_samples: list[KernelSample], network_samples: list[NetworkSample]
) -> None:
    """However wrong their times are, and wherever they were timed, they change no error."""
    judges = network_samples[:8]
    judged = [
        KernelSample(kernel, 1e3, network=hash_of(n.graph) if where == "itself" else where)
        for n in judges
        for kernel in split(n.graph, RULES)
    ]
    known = {sample.kernel.kernel_id for sample in judged}
    others = [s for s in kernel_samples if s.kernel.kernel_id not in known][:120]
    without = left_out_errors(samples_of(others, judges))
    assert without is not None
    given = left_out_errors(samples_of([*others, *judged], judges))
    assert given is not None
    np.testing.assert_array_equal(given, without)


def test_nothing_is_judged_where_only_kernels_of_the_networks_were_timed(
    network_samples: list[NetworkSample],
) -> None:
    judges = network_samples[:8]
    judged = [KernelSample(k, 1.0) for n in judges for k in split(n.graph, RULES)]
    assert left_out_errors(samples_of(judged, judges)) is None
    assert (
        left_out_errors(samples_of([replace(s, network="other") for s in judged], judges)) is None
    )
