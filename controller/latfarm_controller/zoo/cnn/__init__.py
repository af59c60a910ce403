"""Convolutional networks for servers, and the families drawn from a search space."""
