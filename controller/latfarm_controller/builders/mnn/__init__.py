"""Graph -> MNN, by its converter."""
