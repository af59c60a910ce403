"""Read stored measurements with DuckDB, and with pandas where it is installed.

Usage: `python examples/read_results.py MEASUREMENTS.parquet`

`latfarm results export measurements.parquet` writes such a file. The database of a running
controller cannot be opened by a second process, so outside readers work on exported files. Each row
is one measurement; latencies are in milliseconds.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import duckdb

SUMMARY = """
SELECT purpose,
       count(*) AS measurements,
       round(median(latency_ms), 4) AS median_ms,
       round(median(mad_ms / latency_ms), 4) AS relative_spread,
       round(sum(board_ms) / 1000, 1) AS board_seconds
FROM measurements WHERE ok GROUP BY purpose ORDER BY purpose
"""
"""What was measured for which purpose, how much it varied, and what it cost in board time."""

REPEATS = """
SELECT graph_hash[:12] AS graph,
       count(*) AS times,
       round(min(latency_ms), 4) AS fastest_ms,
       round(max(latency_ms) / min(latency_ms) - 1, 4) AS difference
FROM measurements WHERE ok AND purpose = 'network'
GROUP BY graph_hash HAVING count(*) > 1 ORDER BY difference DESC LIMIT 5
"""
"""Networks that were measured more than once, and how much their latencies differ."""


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measurements", type=Path, help="a Parquet file")
    given = parser.parse_args()

    with duckdb.connect() as connection:
        connection.read_parquet(str(given.measurements)).create_view("measurements")
        for title, query in (("by purpose", SUMMARY), ("measured again", REPEATS)):
            print(title)
            if importlib.util.find_spec("pandas") is not None:
                print(connection.sql(query).df().to_string(index=False))
            else:
                print(connection.sql(query))


if __name__ == "__main__":
    main()
