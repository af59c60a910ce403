"""Profiles: networks that are profiled for the times of their layers, and what these times say."""
