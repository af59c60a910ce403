"""Names in a plot: none lies on another, on a mark or on a bar, however near the networks are."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import pytest
from latfarm_controller.reports.pages import svg
from latfarm_controller.reports.pages.name_places import (
    LETTER,
    Box,
    PlacedName,
    beyond,
    overlaps,
    placed,
)

AREA = Box(64.0, 16.0, 624.0, 372.0)
NAMES = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet_old", "vgg19", "zfnet512"),
)


def marks(near: float) -> list[tuple[str, float, float]]:
    """Nine networks whose marks lie `near` units apart."""
    return [
        (name, 320.0 + near * index, 190.0 + 9.0 * ((5 * index) % 7))
        for index, name in enumerate(NAMES)
    ]


def bars(names: list[tuple[str, float, float]]) -> list[Box]:
    """A mark and a tall interval for each network."""
    circles = [Box(x - 6, y - 6, x + 6, y + 6) for _, x, y in names]
    return circles + [Box(x - 3, y - 60, x + 3, y + 70) for _, x, y in names]


def covered(places: list[PlacedName], taken: list[Box]) -> list[str]:
    """Names that lie on a mark, a bar or another name."""
    on_marks = [bool(areas.any()) for areas in overlaps([place.box for place in places], taken)]
    pairs = [
        f"{a.text} {b.text}" for a, b in combinations(places, 2) if overlaps([a.box], [b.box]).any()
    ]
    return [place.text for place, on in zip(places, on_marks, strict=True) if on] + pairs


@pytest.mark.parametrize("near", [8.0, 15.0, 30.0])
def test_names_of_networks_of_like_latency_are_all_readable(near: float) -> None:
    names = marks(near)
    taken = bars(names)
    places = placed(names, taken, AREA)
    assert [place.text for place in places] == list(NAMES)
    assert covered(places, taken) == []
    assert not beyond([place.box for place in places], AREA).any()
    assert placed(names, taken, AREA) == places, "the same plot is drawn each time"


def test_a_name_alone_stands_beside_its_mark() -> None:
    (place,) = placed([("net", 300.0, 200.0)], [], AREA)
    assert not place.led
    assert abs(place.x - 300.0) == 8.0
    assert place.box.right - place.box.left == pytest.approx(3 * LETTER)


@pytest.mark.parametrize(("x", "on_the_right"), [(70.0, True), (620.0, False)])
def test_names_stay_in_the_plot(x: float, on_the_right: bool) -> None:
    (place,) = placed([("a-long-name-of-a-network", x, 200.0)], [], AREA)
    assert place.on_the_right == on_the_right
    assert not beyond([place.box], AREA).any()


def test_a_line_leads_to_a_name_that_stands_far_away() -> None:
    points = [
        svg.Point(name, 30.0 + 0.6 * index, 30.0 + 0.9 * ((index * 5) % 7), 22.0, 42.0)
        for index, name in enumerate(NAMES)
    ]
    root = ElementTree.fromstring(svg.agreement(points))
    leads = [line for line in root.iter("line") if line.get("class") == "lead"]
    assert leads
    told = [text.text for text in root.iter("text")]
    assert all(name in told for name in NAMES)


def test_names_keep_clear_of_the_legend() -> None:
    low = [svg.Point("low", 1.0, 1.0, 0.9, 1.1), svg.Point("high", 1000.0, 1000.0, 900.0, 1100.0)]
    wrong = svg.Point("far-too-slow", 1.5, 800.0, 790.0, 810.0)
    root = ElementTree.fromstring(svg.agreement([*low, wrong]))
    (name,) = [text for text in root.iter("text") if text.text == "far-too-slow"]
    below = float(name.get("y") or 0.0) > 16 + 62
    beside = float(name.get("x") or 0.0) > 64 + 190
    assert below or beside
