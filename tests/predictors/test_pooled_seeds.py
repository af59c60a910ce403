"""Results of several seeds that were measured on different days, pooled from what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.unseen.pooled_seeds import pooled_seeds
from benchmarks.unseen.published import PLATFORMS, SEEDS
from benchmarks.unseen.verdicts import OURS, JudgedNetwork, summary
from tests.predictors.test_networks_benchmark import drawn


def kept(rows: list[JudgedNetwork]) -> dict[str, Any]:
    """The results of a seed as the file of figures keeps them."""
    return {**summary(rows), "rows": {row.name: row.to_json() for row in rows}}


def test_one_seed_gives_its_own_figures() -> None:
    record = kept(drawn(60, 1))
    found = pooled_seeds([record])
    for name, row in found["table"].items():
        assert row == {part: record["table"][name][part] for part in row}
    for name, lead in found["leads"].items():
        assert lead == {part: record["leads"][name][part] for part in lead}
    assert found["perfect"]["within10"] == record["perfect"]["within10"]
    shipped = found["shipped"]
    assert shipped["percent"] == record["shipped"]["percent"]
    assert shipped["interval"] == pytest.approx(record["shipped"]["interval"], abs=0.1)
    assert shipped["median_width_percent"] == record["shipped"]["median_width_percent"]


def test_several_seeds_give_nearly_what_their_networks_give_together() -> None:
    parts = [drawn(90, 1), drawn(150, 2), drawn(60, 3)]
    found = pooled_seeds([kept(rows) for rows in parts])
    whole = summary([row for rows in parts for row in rows])
    assert found["networks"] == whole["networks"] == 300
    for name, row in found["table"].items():
        for part, share in row.items():
            assert share == pytest.approx(whole["table"][name][part], abs=0.15)
    assert found["perfect"]["within5"] == pytest.approx(whole["perfect"]["within5"], abs=0.15)
    for name, lead in found["leads"].items():
        assert lead["points"] == pytest.approx(whole["leads"][name]["points"], abs=0.2)
        assert lead["interval"] == pytest.approx(whole["leads"][name]["interval"], abs=1.5)
    for part in ("percent", "median_width_percent"):
        assert found["shipped"][part] == pytest.approx(whole["shipped"][part], abs=0.15)
    assert found["shipped"]["interval"] == pytest.approx(whole["shipped"]["interval"], abs=0.3)


def test_a_method_is_pooled_although_it_has_no_answer_for_some_networks() -> None:
    rows = drawn(30, 4)
    rows[0] = JudgedNetwork(
        rows[0].name, rows[0].family, rows[0].passes_ms, rows[0].predicted_ms, rows[0].interval_ms
    )
    record = kept(rows)
    assert "nn-meter (29)" in record["table"]
    found = pooled_seeds([record, kept(drawn(30, 5))])
    assert set(found["table"]) == {OURS, "nn-meter", "forest"}


def test_every_published_platform_has_seeds_and_none_is_the_development_seed() -> None:
    assert list(SEEDS) == list(PLATFORMS.values())
    assert all(seeds and 0 not in seeds for seeds in SEEDS.values())
