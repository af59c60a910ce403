"""A runtime of latfarm's that computes networks with numpy."""
