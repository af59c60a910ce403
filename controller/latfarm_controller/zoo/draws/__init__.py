"""Random draws: kernels, whole networks and data sets."""
