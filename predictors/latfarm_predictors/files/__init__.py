"""Bundles on disk: the archive, the state of fitted models, and the cache of fits."""
