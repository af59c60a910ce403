"""Kernels: which ops of a graph a runtime executes as one unit, and what a kernel computes."""
