"""ONNX files as several runtimes need them: their nodes, and which of them a kernel covers."""
