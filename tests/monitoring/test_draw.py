"""The plain drawing of panels, for hosts without node and a browser."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from docs.monitoring import draw

SVG = "{http://www.w3.org/2000/svg}"


def lines(text: str) -> list[str]:
    """The points of each line of a picture."""
    return [one.attrib["points"] for one in ET.fromstring(text).iter(f"{SVG}polyline")]


def test_a_line_is_drawn_for_each_series_and_ends_where_points_are_missing() -> None:
    whole = draw.Series("a<b", [(float(t), 2.0 * t) for t in range(101)])
    gap = draw.Series("c", [(0.0, 1.0), (1.0, 1.0), (90.0, 3.0), (91.0, float("nan"))])
    text = draw.picture("Queue & co", "short", [whole, gap], 0.0, 100.0)
    assert [len(points.split()) for points in lines(text)] == [101, 2, 1]
    assert "Queue &amp; co" in text
    assert "a&lt;b: 200" in text
    assert "c: 3" in text


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.5, "percentunit", "50 %"),
        (3.0 * 86400, "s", "3 d"),
        (0.02, "s", "20 ms"),
        (1.7e9, "hertz", "1.7 GHz"),
        (12.0, "short", "12"),
    ],
)
def test_values_have_units(value: float, unit: str, expected: str) -> None:
    assert draw.shown(value, unit) == expected
