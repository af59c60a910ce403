"""The farm: scheduler, shards of boards, driver; the only importer of Ray."""
