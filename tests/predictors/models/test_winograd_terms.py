"""Terms for Winograd's schemes: chosen by measurements, and left alone in old bundles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import latfarm_predictors.models.roofline as roofline_module
import numpy as np
import pytest
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.features.tile_features import transformed_weights
from latfarm_predictors.features.winograd import winograd, winograd_ratio
from latfarm_predictors.models.base import ModelState, Regressor
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.testing.convolutions import conv_work


def windowed(count: int, seed: int) -> tuple[Table, Array, Array]:
    """Convolutions of stride 1, and their latencies where all windows have Winograd's scheme.

    The truth is MNN's rule: the cheapest admitted tile, or the direct scheme.
    """
    rng = np.random.default_rng(seed)
    works = []
    for _ in range(count):
        size, window = int(rng.integers(10, 57)), int(rng.choice([1, 3, 5, 7, 9]))
        c_in, c_out = (int(n) for n in np.exp(rng.uniform(2.5, 5.5, 2)))
        works.append(conv_work(size, c_in, c_out, window, 1))
    table = as_table(works)
    ratio, _ = winograd(table)
    true = 0.01 + table.macs * ratio / 3e7 + table.total_bytes / 1e7
    return table, true * np.exp(0.02 * rng.standard_normal(count)), true


def test_measurements_tell_whether_larger_windows_have_winograds_scheme() -> None:
    table, measured, _ = windowed(150, 3)
    roofline = Roofline().fit(table, measured)
    assert roofline.larger
    direct = 0.01 + table.macs / 3e7 + table.total_bytes / 1e7
    assert not Roofline().fit(table, direct).larger
    again = Roofline.from_state(roofline.state())
    np.testing.assert_array_equal(again.predict(table)[0], roofline.predict(table)[0])
    judged, _, judged_ms = windowed(200, 4)
    within = evaluate(RooflineGP().fit(table, measured).predict(judged)[0], judged_ms).within10
    assert within > 0.9


@pytest.mark.parametrize("positions", [0, 14])
def test_measurements_tell_whether_small_maps_admit_small_tiles_only(positions: int) -> None:
    rng = np.random.default_rng(8)
    works = []
    for _ in range(200):
        size, window = int(rng.integers(4, 30)), int(rng.choice([1, 3, 3, 5]))
        c_in, c_out = (int(n) for n in np.exp(rng.uniform(2.5, 5.5, 2)))
        works.append(conv_work(size, c_in, c_out, window, 1))
    table = as_table(works)
    true = 0.01 + table.macs * winograd(table, positions)[0] / 3e7 + table.total_bytes / 1e7
    roofline = Roofline().fit(table, true * np.exp(0.02 * rng.standard_normal(len(table))))
    assert roofline.positions == positions
    again = Roofline.from_state(roofline.state())
    np.testing.assert_array_equal(again.predict(table)[0], roofline.predict(table)[0])


def spilling(count: int, seed: int) -> tuple[Table, Array]:
    """3 x 3 convolutions whose transformed weights are read again where caches cannot keep them."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(3.0, 6.3, (count, 2))).astype(int)
    maps = rng.integers(3, 29, count)
    table = as_table(
        [conv_work(int(m), int(a), int(b), 3, 1) for m, (a, b) in zip(maps, sizes, strict=True)]
    )
    beyond = transformed_weights(table)[:, 1]
    true = 0.01 + table.macs * winograd(table)[0] / 3e7 + beyond / 5e6
    return table, true * np.exp(0.02 * rng.standard_normal(count))


def test_terms_for_transformed_weights_are_kept_where_they_help() -> None:
    table, measured = spilling(120, 5)
    assert RooflineGP().fit(table, measured).roofline.spills
    plain = 0.01 + table.macs * winograd(table)[0] / 3e7 + table.total_bytes / 1e7
    assert not RooflineGP().fit(table, plain).roofline.spills
    forced = RooflineGP(spills=True).fit(table, plain)
    assert RooflineGP.from_state(forced.state()).roofline.spills


@pytest.mark.parametrize("make", [RooflineGP, Stack, lambda: Boosted(sigma=0.1), Roofline])
def test_a_state_of_edition_1_predicts_as_it_did(
    make: Callable[[], Regressor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline_module, "EDITION", 1)
    table, measured, _ = windowed(100, 6)
    model = make()
    if isinstance(model, RooflineGP | Stack):
        gp = model if isinstance(model, RooflineGP) else model.gp
        gp._spills = False
    model.fit(table, measured)
    state = model.state()
    old = type(model).from_state(without_editions(state))
    monkeypatch.undo()
    judged, _, _ = windowed(60, 7)
    ratios = [r.ratio(judged) for r in rooflines_of(old)]
    assert all(np.array_equal(ratio, winograd_ratio(judged, 1)) for ratio in ratios)
    for before, after in zip(model.predict(judged), old.predict(judged), strict=True):
        np.testing.assert_array_equal(before, after)


def without_editions(state: ModelState) -> ModelState:
    """A state as versions before edition 2 wrote it."""
    newer = {"edition", "larger", "positions", "spills"}
    return replace(
        state,
        values={name: value for name, value in state.values.items() if name not in newer},
        parts={name: without_editions(part) for name, part in state.parts.items()},
    )


def rooflines_of(model: object) -> list[Roofline]:
    """The rooflines below a regressor."""
    if isinstance(model, Roofline):
        return [model]
    if isinstance(model, Stack):
        return [model.gp.roofline]
    assert isinstance(model, RooflineGP | Boosted)
    return [model.roofline]
