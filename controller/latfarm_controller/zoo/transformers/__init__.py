"""Transformers for images and language."""
