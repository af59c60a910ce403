"""Fitting makes a predictor of measurements; a predictor makes answers of graphs."""
