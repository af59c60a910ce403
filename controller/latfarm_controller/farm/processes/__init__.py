"""Where boards and builders run: Ray and its processes, or the present event loop."""
