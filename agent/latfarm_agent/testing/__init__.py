"""The conformance suite for runtimes, and sample models for tests. It needs pytest."""
