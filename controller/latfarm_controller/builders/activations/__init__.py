"""How large activations will be, told without running anything."""
