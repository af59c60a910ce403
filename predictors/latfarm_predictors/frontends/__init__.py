"""Readers: files of other tools to Graphs."""
