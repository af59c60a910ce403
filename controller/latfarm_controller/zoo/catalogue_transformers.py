"""The transformers of the zoo, and what their publications say of them."""

from __future__ import annotations

from latfarm_controller.zoo.family import Family

ALL: tuple[Family, ...] = ()
