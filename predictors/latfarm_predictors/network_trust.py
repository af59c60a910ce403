"""The name by which users import `trust`; the code is in `trust/network_trust.py`.

This module stays so that programs written for earlier versions go on to work.
"""

from __future__ import annotations

from latfarm_predictors.trust.network_trust import trust

__all__ = ["trust"]
