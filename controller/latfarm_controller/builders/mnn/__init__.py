"""Builds MNN models from graphs, with MNN's own converter."""
