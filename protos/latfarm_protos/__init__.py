"""Messages and stubs of latfarm, by package version."""
