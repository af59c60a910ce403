"""Regressors of kernel latency, one file for each family, behind one Protocol (`base.py`)."""
