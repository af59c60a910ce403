"""The name by which users import `platform_trust`; the code is in `trust/platform_trust.py`.

This module stays so that programs written for earlier versions go on to work.
"""

from __future__ import annotations

from latfarm_predictors.trust.platform_trust import platform_trust

__all__ = ["platform_trust"]
