"""Metrics of the controller for Prometheus."""
