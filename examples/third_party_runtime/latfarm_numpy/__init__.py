"""A runtime for latfarm that computes networks with numpy."""
