"""Conformance suites and makers of small inputs, for tests of this project and of others."""
