"""The runtime that executes models with MNN."""
