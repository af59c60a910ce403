"""Convolutional networks for phones."""
