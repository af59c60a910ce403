"""The gRPC service of the controller: its server, its client, and who may call what."""
