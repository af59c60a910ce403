"""Features: kernels as rows of numbers that regressors learn from."""
