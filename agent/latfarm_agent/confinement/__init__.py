"""What the kernel keeps from a worker: files, signals, network, system calls, privileges."""
