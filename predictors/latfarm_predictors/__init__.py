"""Latency predictors: graphs, kernels, fusion rules, models and their confidence.

Imports neither the farm nor its transports: a NAS program can depend on this package alone.
"""
