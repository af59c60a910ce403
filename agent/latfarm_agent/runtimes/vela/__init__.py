"""Vela's estimate of an Ethos-U as a platform."""
