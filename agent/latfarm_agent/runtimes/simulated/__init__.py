"""Simulated boards, whose true latencies are known because they are computed."""
