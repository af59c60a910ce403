"""Workers that speak to one board each, grouped in shards, and the interfaces to them."""
