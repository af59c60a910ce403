"""Regressors for kernel latencies, one file a family, behind one Protocol (`base.py`)."""
