"""Campaigns: ask/tell plans of measurements."""
