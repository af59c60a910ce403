"""TensorRT 8.4 to 11."""
