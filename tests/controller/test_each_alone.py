"""Items that are worked on together; one that fails fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from latfarm_controller.each_alone import each_alone


def halves(calls: list[list[int]]) -> Callable[[Sequence[int]], list[int]]:
    """Halve even numbers; an odd number fails all that it is worked on with."""

    def work(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        for item in items:
            if item % 2:
                raise ValueError(f"{item} is odd")
        return [item // 2 for item in items]

    return work


def test_items_that_are_sound_are_worked_on_together() -> None:
    calls: list[list[int]] = []
    assert each_alone(halves(calls), [2, 4, 6]) == [1, 2, 3]
    assert calls == [[2, 4, 6]]
    assert each_alone(halves(calls), []) == []
    assert len(calls) == 1


def test_the_item_that_fails_has_its_error_and_all_others_their_results() -> None:
    calls: list[list[int]] = []
    items = [2, 4, 6, 7, 8, 10, 12, 14]
    found = each_alone(halves(calls), items)
    assert [repr(each) for each in found] == ["1", "2", "3", "ValueError('7 is odd')"] + [
        str(item // 2) for item in items[4:]
    ]
    assert len(calls) == 7, "one call for all, and two for each time it was halved"


def test_an_error_that_concerns_no_single_item_ends_everything() -> None:
    with pytest.raises(ValueError, match="3 is odd"):
        each_alone(halves([]), [2, 3], KeyError)
