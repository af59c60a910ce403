"""The baselines with which a predictor is compared: their names and their fitting."""
