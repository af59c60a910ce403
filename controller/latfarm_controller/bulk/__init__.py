"""Predicts many networks: reads, hashes and predicts them in several processes."""
