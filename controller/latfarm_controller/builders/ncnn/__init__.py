"""Graph -> ncnn."""
