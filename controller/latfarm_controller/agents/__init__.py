"""Boards as the controller sees them: wire, client, registry."""
