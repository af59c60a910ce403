"""The gRPC service of the agent: server, jobs, leases' tokens, certificates and metrics."""
