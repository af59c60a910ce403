"""Export of measurements to other farms, and import of theirs."""
