"""The facts of reports, as plain data."""
