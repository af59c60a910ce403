"""What the controller tells Prometheus."""
