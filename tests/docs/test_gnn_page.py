"""The tables of the page about graph networks are those of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gnn.published import SEEDS, TABLES, FamilyTable

PAGE = (Path(__file__).parents[2] / "docs" / "gnn.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.source))
def test_a_table_of_families_is_that_of_its_file(table: FamilyTable) -> None:
    assert "\n".join(table.rows()) in PAGE


def test_the_table_of_seeds_is_that_of_its_files() -> None:
    assert "\n".join(SEEDS.rows()) in PAGE
