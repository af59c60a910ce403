"""When maintenance windows are open, also where they repeat and where clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_controller.errors import UsageError
from latfarm_controller.maintenance_window import MaintenanceWindow, Opening, open_now


class Lab(tzinfo):
    """A time zone that is two hours before UTC from April to September, and else one hour."""

    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(hours=2 if dt is not None and 4 <= dt.month <= 9 else 1)

    def dst(self, dt: datetime | None) -> timedelta:
        return self.utcoffset(dt) - timedelta(hours=1)

    def tzname(self, dt: datetime | None) -> str:
        return "lab"


LAB = Lab()


def unix_s(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=LAB).timestamp()


def test_a_window_opens_once() -> None:
    window = MaintenanceWindow.of_texts("2026-12-24T08:00", "2026-12-24T12:00")
    begin_s, end_s = unix_s("2026-12-24T08:00"), unix_s("2026-12-24T12:00")
    assert window.opening(begin_s - 0.001, LAB) is None
    assert window.opening(begin_s, LAB) == Opening(begin_s, end_s)
    assert window.opening(end_s - 0.001, LAB) == Opening(begin_s, end_s)
    assert window.opening(end_s, LAB) is None
    assert window.opening(unix_s("2026-12-31T09:00"), LAB) is None


def test_a_weekly_window_stays_at_its_hour_when_the_clocks_change() -> None:
    window = MaintenanceWindow.of_texts("2026-03-02T06:00", "2026-03-02T07:30", "week")
    assert window.opening(unix_s("2026-02-23T06:30"), LAB) is None, "before the first one"
    for day in ("2026-03-02", "2026-03-30", "2026-04-06", "2026-09-28", "2026-10-05"):
        found = window.opening(unix_s(f"{day}T06:00"), LAB)
        assert found == Opening(unix_s(f"{day}T06:00"), unix_s(f"{day}T07:30"))
        assert window.opening(unix_s(f"{day}T05:59"), LAB) is None
        assert window.opening(unix_s(f"{day}T07:30"), LAB) is None
        assert window.opening(unix_s(f"{day}T06:30") + 86_400, LAB) is None


def test_a_window_over_midnight_repeats_every_day() -> None:
    window = MaintenanceWindow.of_texts("2026-03-02T23:00", "2026-03-03T01:00", "day")
    assert window.opening(unix_s("2026-06-10T00:30"), LAB) == Opening(
        unix_s("2026-06-09T23:00"), unix_s("2026-06-10T01:00")
    )
    assert window.opening(unix_s("2026-06-10T12:00"), LAB) is None


def test_a_utc_offset_is_kept() -> None:
    window = MaintenanceWindow.of_texts("2026-03-02T06:00+00:00", "2026-03-02T07:00+00:00", "week")
    begin_s = datetime(2026, 6, 1, 6, tzinfo=UTC).timestamp()
    assert window.opening(begin_s, LAB) == Opening(begin_s, begin_s + 3600)


@given(
    minutes=st.integers(-20_000, 600_000),
    length=st.integers(1, 1439),
    every=st.sampled_from(["", "day", "week"]),
)
def test_an_opening_holds_the_time_at_which_it_is_open(
    minutes: int, length: int, every: str
) -> None:
    begin = datetime(2026, 3, 2, 6)
    window = MaintenanceWindow(begin, begin + timedelta(minutes=length), every)
    now = begin + timedelta(minutes=minutes)
    now_s = now.replace(tzinfo=LAB).timestamp()
    found = window.opening(now_s, LAB)
    if found is not None:
        assert found.begin_s <= now_s < found.end_s
    period = {"": 10**9, "day": 1440, "week": 10_080}[every]
    wall = minutes % period if every and minutes >= 0 else minutes
    changes = any(abs(wall - edge) <= 120 for edge in (0, length, period))
    if not changes:  # clocks change at midnight, so an hour is there twice or never
        assert (found is not None) is (0 <= wall < length)


def test_windows_that_overlap_count_as_one() -> None:
    one = MaintenanceWindow.of_texts("2026-12-24T08:00", "2026-12-24T12:00")
    other = MaintenanceWindow.of_texts("2026-12-24T11:00", "2026-12-24T14:00")
    assert open_now((one, other), unix_s("2026-12-24T11:30"), LAB) == Opening(
        unix_s("2026-12-24T11:00"), unix_s("2026-12-24T14:00")
    )
    assert open_now((one, other), unix_s("2026-12-24T15:00"), LAB) is None


def test_a_window_is_written_and_read_back() -> None:
    for texts in (("2026-12-24T08:00", "2026-12-24T12:00:30", "day"), ("2026-12-24", "2026-12-25")):
        window = MaintenanceWindow.of_texts(*texts)
        assert MaintenanceWindow.of_json(window.to_json()) == window
    window = MaintenanceWindow.of_texts("2026-12-24T08:00", "2026-12-24T12:00", "week")
    assert str(window) == "2026-12-24T08:00 to 2026-12-24T12:00, again every week"


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (("tomorrow", "2026-12-24"), "is no time"),
        (("2026-12-24", "2026-12-24"), "ends after it begins"),
        (("2026-12-24", "2027-02-24"), "within 30 days"),
        (("2026-12-24T08:00", "2026-12-25T08:00", "day"), "shorter than that"),
        (("2026-12-24", "2026-12-25", "month"), "known: day, week"),
        (("2026-12-24T08:00+01:00", "2026-12-24T12:00"), "at both ends or at none"),
        (("0001-01-01", "0001-01-02"), "from 2000 to 2200"),
    ],
)
def test_windows_that_cannot_be_are_refused(texts: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        MaintenanceWindow.of_texts(*texts)
