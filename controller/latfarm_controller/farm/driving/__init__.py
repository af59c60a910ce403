"""Runs one campaign on a farm: asks it, has its requests measured, stores and tells."""
