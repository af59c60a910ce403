"""The gRPC service of the controller, who may call it, and the process that serves it."""
