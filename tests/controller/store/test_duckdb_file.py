"""Queries of the database file: those that are asked again are not parsed again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from latfarm_controller.errors import StoreError
from latfarm_controller.store.duckdb_file import MOST_PARSED, DuckDBFile


def test_more_queries_than_are_kept_parsed_are_answered(tmp_path: Path) -> None:
    file = DuckDBFile(tmp_path / "store.duckdb")
    try:
        for _ in range(2):
            told = [file.number(f"SELECT {number}") for number in range(MOST_PARSED + 5)]
            assert told == list(range(MOST_PARSED + 5))
        assert file._parsed.cache_info().currsize == MOST_PARSED
    finally:
        file.close()


def test_a_parsed_query_sees_what_was_written_and_takes_other_values(tmp_path: Path) -> None:
    file = DuckDBFile(tmp_path / "store.duckdb")
    query = "SELECT story FROM losses WHERE commits = ?"
    try:
        assert file.all(query, [1]) == []
        for missing in (1, 2):
            with file.transaction("test") as cursor:
                values = [0.0, missing, f"{missing} rows"]
                cursor.execute("INSERT INTO losses VALUES (?, ?, ?)", values)
        with ThreadPoolExecutor(4) as threads:
            told = list(threads.map(lambda n: file.all(query, [n]), [1, 2, 3] * 20))
        assert told == [[("1 rows",)], [("2 rows",)], []] * 20
        with pytest.raises(StoreError):
            file.all("SELECT nothing FROM losses")
        with pytest.raises(StoreError):
            file.all("SELEC 1")
    finally:
        file.close()
