"""Vela's estimates for Ethos-U NPUs, offered as platforms."""
