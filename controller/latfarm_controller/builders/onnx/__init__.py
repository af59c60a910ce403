"""Graph -> ONNX."""
