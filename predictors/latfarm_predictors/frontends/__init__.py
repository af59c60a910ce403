"""Frontends: read model files of other tools (ONNX) as Graphs."""
