"""The farm's hands: one worker a board, in shards, and the links to them."""
