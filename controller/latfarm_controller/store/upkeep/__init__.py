"""Checks, repairs and cleans a store."""
