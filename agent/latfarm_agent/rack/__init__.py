"""A rack: many simulated boards in one process, each a whole agent with a port of its own."""
