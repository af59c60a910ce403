"""Builds ncnn models from graphs."""
