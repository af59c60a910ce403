"""Commands about the store: what is in it, whether it is sound, and its exchange with others."""
