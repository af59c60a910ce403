"""What reports tell, as plain data."""
