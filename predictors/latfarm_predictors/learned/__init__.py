"""What is learned from the measurements of one platform: kernels, cold caches, networks."""
