"""Gaussian processes: posterior, search of scales, choice of what to measure next."""
