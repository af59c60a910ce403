"""Who holds the board: a pure state machine of leases and fencing tokens."""
