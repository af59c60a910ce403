"""LiteRT and tflite-runtime, with their delegates."""
