"""The board around a measurement: temperatures, clocks, load and its fixed settings."""
