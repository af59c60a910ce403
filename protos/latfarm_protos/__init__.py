"""The messages between agent and controller, their gRPC stubs, and what both sides share."""

__version__ = "0.1.0"
