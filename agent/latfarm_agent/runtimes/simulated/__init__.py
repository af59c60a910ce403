"""Boards whose truth is known."""
