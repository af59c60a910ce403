"""The report that compares the inference engines of a board."""
