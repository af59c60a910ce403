"""The runtime that executes models with TensorRT 8.4 to 11."""
