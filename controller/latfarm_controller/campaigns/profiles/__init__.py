"""Networks that are profiled for the times of their layers, and what is read from them."""
