"""Runtimes, found by entry point: a package each; what several share stands beside them."""
