"""The store: one interface, DuckDB behind it."""
