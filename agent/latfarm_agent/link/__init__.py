"""The link between the process with the network and the process with the devices."""
