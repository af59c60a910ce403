"""How well measurements cover a kernel, and how sure an answer for it can be."""
