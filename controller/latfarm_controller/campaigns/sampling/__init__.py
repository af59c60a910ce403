"""Samplers: which kernels to measure next."""
