"""Graph: a network as an immutable graph without weights, and what is made of it alone."""
