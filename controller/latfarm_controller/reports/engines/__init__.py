"""The report that compares runtimes."""
