"""Tools that test campaigns without boards."""
