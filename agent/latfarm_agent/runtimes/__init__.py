"""Runtimes: one file each, found by entry point."""
