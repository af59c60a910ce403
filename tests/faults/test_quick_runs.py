"""Twenty small seeded runs with faults, without Ray; `make test-faults` runs 200 large ones.

Nothing here depends on how fast the host is: a run ends when its campaign does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.faults.checks import Values
from tests.faults.one_run import run_scenario, undisturbed_values
from tests.faults.programs.warm_start import WarmStart
from tests.faults.scenario import QUICK, drawn
from tests.faults.summary import line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("seeded-faults")]
SEEDS = range(1, 21)


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmStart]:
    """The process that starts boards and controllers."""
    with WarmStart() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(warm: WarmStart) -> Mapping[str, Values]:
    """What boards measure without any fault."""
    return undisturbed_values(warm)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_left_over(
    seed: int, warm: WarmStart, undisturbed: Mapping[str, Values]
) -> None:
    report = run_scenario(drawn(seed, QUICK, ray=False), warm, undisturbed)
    assert report["passed"], line(report)
