"""Who may connect to whom: certificates, roles, revocation, and the gate before a gRPC server.

Agent and controller share this package, so that both sides decide by the same rules.
"""
