"""The messages between agent and controller, their gRPC stubs, and what both sides share."""
