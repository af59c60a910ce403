"""NNLP, NNLQP's predictor of latencies (Liu et al. 2022, section 6), and what stands beside it.

Features, networks, checkpoints, intervals and answers need numpy alone. torch is imported in the
folder `learning` only, which trains.
"""
