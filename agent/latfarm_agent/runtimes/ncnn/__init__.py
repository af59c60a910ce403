"""ncnn."""
