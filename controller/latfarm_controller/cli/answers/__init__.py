"""Commands about bundles, predictions, queries, results and reports."""
