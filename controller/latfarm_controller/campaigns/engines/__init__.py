"""The campaign that compares runtimes on whole networks."""
