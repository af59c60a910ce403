"""The runtime that executes models with ncnn."""
