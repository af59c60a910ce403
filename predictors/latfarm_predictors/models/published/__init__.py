"""Predictors of the literature, written after their publications, as baselines."""
