"""Campaigns that find out which ops a runtime executes as one kernel."""
