"""The store: an interface, and DuckDB behind it."""
