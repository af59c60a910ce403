"""Commands about graphs and the zoo of networks."""
