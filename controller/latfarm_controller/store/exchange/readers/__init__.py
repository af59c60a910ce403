"""Readers of measurements that others published: NNLQP, nn-Meter, HELP, ncnn."""
