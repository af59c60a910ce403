"""Commands that run campaigns."""
