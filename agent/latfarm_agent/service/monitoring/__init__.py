"""What Prometheus is told about the agent: counters, and what is read when it asks."""
