"""Estimates the distributions of activations without running the network."""
