"""The controller: campaigns, farm, store, command line."""
