"""The runtime that executes models with LiteRT or tflite-runtime, and with delegates."""
