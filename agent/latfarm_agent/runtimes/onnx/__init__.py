"""What several runtimes share about ONNX files: reading their nodes, and what kernels cover."""
