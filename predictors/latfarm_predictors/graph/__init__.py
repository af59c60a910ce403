"""Graph: a network as an immutable graph, and what is computed from the graph alone."""
