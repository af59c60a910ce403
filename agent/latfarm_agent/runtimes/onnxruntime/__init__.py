"""The runtime that executes models with ONNX Runtime and its execution providers."""
