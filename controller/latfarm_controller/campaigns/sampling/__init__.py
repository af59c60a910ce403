"""Samplers decide which kernels to measure next."""
