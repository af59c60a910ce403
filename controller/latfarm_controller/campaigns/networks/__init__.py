"""Campaigns that measure whole networks."""
