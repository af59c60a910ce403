"""Random draws of kernels, whole networks and data sets."""
