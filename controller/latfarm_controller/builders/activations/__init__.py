"""Estimates how large activations will be, without running the network."""
