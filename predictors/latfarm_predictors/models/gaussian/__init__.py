"""Gaussian processes: prediction, search for hyperparameters, choice of what to measure next."""
