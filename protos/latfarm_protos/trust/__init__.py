"""Who may speak to whom: certificates, roles, revocation, and the gate before a gRPC server.

Shared by agent and controller, so that both sides judge by the same rules.
"""
