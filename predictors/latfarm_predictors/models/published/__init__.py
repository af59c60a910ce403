"""Baselines: predictors of the literature, written from their publications."""
