"""Shares the time of boards evenly between campaigns of one priority.

Each campaign has an account of the board time that it got on each platform. The next request is one
of the campaign whose account is lowest. A request is charged when it is dispatched, with what the
campaign's requests took lately, and corrected when its board answers. So it does not matter how
many requests a campaign submits at once, nor how long they take. This is start-time fair queueing
(Goyal, Vin and Cheng, SIGCOMM 1996), which shares as deficit round robin does (Shreedhar and
Varghese, SIGCOMM 1995), but needs no cost before a request is served.

A campaign that has nothing to run for a while earns credit for `CREDIT_MS` and no more, and one
that begins starts level with the others. A decision looks at no more than the campaigns that wait.
"""

from __future__ import annotations

from typing import NamedTuple

CREDIT_MS = 5_000.0
"""Most board time that a campaign may lag behind and still catch up with, for each board, in ms.

It covers the time in which models are built, so that a campaign does not lose its share meanwhile.
"""
MEMORY = 0.2
"""Weight of the newest request in what requests of a campaign take."""
FIRST_COST_MS = 1.0
"""What a request is charged with before any request has ended, in milliseconds."""


class Account(NamedTuple):
    """A campaign on one platform, whose board time is counted."""

    campaign_id: str
    platform: str


class BoardTimeShares:
    """The accounts. It reads no clock."""

    def __init__(self) -> None:
        self._used_ms: dict[str, dict[str, float]] = {}  # by campaign, then by platform
        self._cost_ms: dict[str, dict[str, float]] = {}
        self._level_ms: dict[tuple[str, ...], float] = {}  # by the platforms of a group of boards
        self._typical_ms = FIRST_COST_MS

    def used_ms(self, account: Account) -> float:
        """What an account is charged with; that of a campaign without requests so far is 0."""
        return self._used_ms.get(account.campaign_id, {}).get(account.platform, 0.0)

    def cost_ms(self, account: Account) -> float:
        """What a request of an account takes."""
        return self._cost_ms.get(account.campaign_id, {}).get(account.platform, self._typical_ms)

    def charge(self, account: Account, platforms: tuple[str, ...], boards: int) -> float:
        """Charge an account for a request that goes to a board; returns the amount.

        Args:
            account: of the request.
            platforms: those of the board. Boards with equal platforms have a level: what the
                accounts of the requests that they got last were charged with.
            boards: how many boards offer the platform.
        """
        level_ms = self._level_ms.get(platforms, 0.0)
        accounts = self._used_ms.setdefault(account.campaign_id, {})
        used_ms = accounts.get(account.platform)
        if used_ms is None:
            used_ms = level_ms
        else:
            used_ms = max(used_ms, level_ms - CREDIT_MS * max(1, boards))
        self._level_ms[platforms] = max(level_ms, used_ms)
        cost_ms = self.cost_ms(account)
        accounts[account.platform] = used_ms + cost_ms
        return cost_ms

    def correct(self, account: Account, charged_ms: float, took_ms: float) -> None:
        """Charge an account with what a request took, instead of with what was expected."""
        accounts = self._used_ms.get(account.campaign_id)
        if accounts is None or account.platform not in accounts:
            return  # the campaign has ended
        accounts[account.platform] += took_ms - charged_ms

    def learn(self, account: Account, took_ms: float) -> None:
        """Note what a request of an account took."""
        if account.campaign_id not in self._used_ms:
            return  # the campaign has ended
        costs = self._cost_ms.setdefault(account.campaign_id, {})
        before_ms = costs.get(account.platform, took_ms)
        costs[account.platform] = before_ms + MEMORY * (took_ms - before_ms)
        self._typical_ms += MEMORY * (took_ms - self._typical_ms)

    def forget(self, campaign_id: str) -> None:
        """Forget a campaign that has ended."""
        self._used_ms.pop(campaign_id, None)
        self._cost_ms.pop(campaign_id, None)
