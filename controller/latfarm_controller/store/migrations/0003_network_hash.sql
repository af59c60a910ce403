-- Exports of one network share this hash (docs/hashing.md); '' where a stored graph is unreadable.
-- Filled from the graphs that are there by `backfills.network_hashes`.

ALTER TABLE graphs ADD COLUMN network_hash VARCHAR DEFAULT '';
