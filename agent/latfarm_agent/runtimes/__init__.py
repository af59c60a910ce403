"""The runtimes that execute models: a folder for each, and modules that several of them share."""
