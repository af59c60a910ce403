"""What NVIDIA's boards tell of their clocks, temperatures and power modes."""
