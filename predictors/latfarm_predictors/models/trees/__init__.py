"""Regression trees: growing, storing and evaluating forests and boosted trees."""
