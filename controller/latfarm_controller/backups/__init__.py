"""Backups of a controller's home: what they hold, how they are made, kept and restored."""
