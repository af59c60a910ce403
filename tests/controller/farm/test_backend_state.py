"""Whether the processes behind the farm can be used."""

from __future__ import annotations

from latfarm_controller.farm.backend_state import BackendState


def test_the_first_start_of_builders_is_no_absence() -> None:
    state = BackendState()
    state.note_builders("Ray is being started", starting=True)
    assert state.away == ""
    state.note_builders("", starting=False)
    assert (state.away, state.returns) == ("", 0)


def test_builders_are_away_from_their_death_until_they_build_again() -> None:
    state = BackendState()
    state.note_builders("", starting=False)
    state.note_builders("Ray is away: it was killed", starting=False)
    assert state.away == "Ray is away: it was killed"
    state.note_builders("Ray is being started again", starting=True)
    assert state.away == "Ray is being started again"
    state.note_builders("", starting=False)
    assert (state.away, state.returns) == ("", 1)


def test_a_first_start_that_fails_is_an_absence() -> None:
    state = BackendState()
    state.note_builders("Ray is being started", starting=True)
    state.note_builders("Ray is away: no memory", starting=False)
    assert state.away == "Ray is away: no memory"
