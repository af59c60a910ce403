"""Builds ONNX models from graphs."""
