"""What the tests of energy share."""

from __future__ import annotations

from latfarm_agent.bench.records import BenchResult, MeasuredEnergy


def energy_of(result: BenchResult) -> MeasuredEnergy:
    """The energy of a result that has one."""
    assert result.energy is not None
    return result.energy
