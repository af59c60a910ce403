"""Translates graphs to TFLite models."""
