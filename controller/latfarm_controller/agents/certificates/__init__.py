"""Certificates of the farm: their authority, what it signed, its passphrase and its successor."""
