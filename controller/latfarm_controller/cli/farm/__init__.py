"""Commands about boards, certificates and the serving controller."""
