"""Processes beside the controller: Ray, model building, and their clean end."""
