"""What measures models: runtimes, platforms, readiness and energy of one board."""
