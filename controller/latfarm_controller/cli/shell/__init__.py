"""What all commands share: connection, inputs, output, progress and signals."""
