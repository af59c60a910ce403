"""Campaigns that measure whole networks: calibration and energy."""
