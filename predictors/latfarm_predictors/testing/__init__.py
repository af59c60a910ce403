"""Makers of random graphs, kernels and files, and slow reference code, for tests."""
