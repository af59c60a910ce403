"""Boards, as the controller sees them: the inventory, clients of agents, certificates."""
