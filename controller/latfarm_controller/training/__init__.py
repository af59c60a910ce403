"""From the store to a bundle: the training set, the fit, and where bundles are kept."""
