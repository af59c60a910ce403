"""Convolutional networks for servers, and families that are drawn from a search space."""
