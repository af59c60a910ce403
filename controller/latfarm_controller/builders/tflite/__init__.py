"""Graph -> TFLite."""
