"""The baselines that a predictor is compared with: their names, fitting and sums."""
