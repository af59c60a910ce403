"""Training of NNLP with torch, which comes with the extra `gnn` and is imported here alone."""
