"""Fitting makes a predictor from measurements; a predictor makes answers from graphs."""
