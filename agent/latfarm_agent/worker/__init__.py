"""The child process in which a runtime lives, and the pool that keeps such processes."""
