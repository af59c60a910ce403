"""How well measurements cover a kernel, and how uncertain its prediction is."""
