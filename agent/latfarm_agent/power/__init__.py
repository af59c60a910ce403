"""What a board's own power rails read while it computes."""
