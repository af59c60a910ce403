"""Campaigns that measure kernels: alone, between pads, and in heads of networks."""
