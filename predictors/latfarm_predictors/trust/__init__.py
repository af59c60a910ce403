"""The two views of trust that reports show: of one network, and of a whole platform."""
