"""What one platform taught: kernel models, cold caches, context and the networks' correction."""
