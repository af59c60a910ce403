"""The scheduler: events in, instructions out, without I/O."""
