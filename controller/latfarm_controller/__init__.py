"""The controller: campaigns, farm, store, command line."""

__version__ = "0.1.0"
