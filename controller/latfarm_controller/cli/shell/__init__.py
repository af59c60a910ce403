"""What all commands share: the connection to the controller, inputs, output and progress."""
