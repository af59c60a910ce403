"""Masks of leaves give the bits of a walk and of LightGBM; trees without masks are walked."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_predictors.errors import BundleError
from latfarm_predictors.features.table import Array
from latfarm_predictors.models.trees.boosted_trees import TextTrees, read_trees, total
from latfarm_predictors.models.trees.leaf_masks import MOST_LEAVES, LeafMasks
from latfarm_predictors.models.trees.tree import Trees

FEATURES = 6
EDGES = [-np.inf, -1e300, -2.5, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1.0 + 2**-52, 7.25, 1e300, np.inf]


def words(values: object) -> str:
    return " ".join(repr(float(value)) for value in np.asarray(values))


def tree_text(rng: np.random.Generator, leaves: int, thresholds: list[float]) -> str:
    """A tree as LightGBM grows and writes them: one leaf after the other is split."""
    left, right = np.zeros(leaves - 1), np.zeros(leaves - 1)
    hangs: list[tuple[Array, int] | None] = [None]
    for node in range(leaves - 1):
        leaf = int(rng.integers(len(hangs)))
        above = hangs[leaf]
        if above is not None:
            above[0][above[1]] = node
        left[node], right[node] = ~leaf, ~len(hangs)
        hangs[leaf] = (left, node)
        hangs.append((right, node))
    lines = [f"num_leaves={leaves}"]
    if leaves > 1:
        lines += [
            "split_feature=" + " ".join(str(n) for n in rng.integers(0, FEATURES, leaves - 1)),
            "threshold=" + words(rng.choice(thresholds, leaves - 1)),
            "decision_type=" + " ".join(str(n) for n in rng.choice([0, 2, 8, 10], leaves - 1)),
            "left_child=" + " ".join(str(int(n)) for n in left),
            "right_child=" + " ".join(str(int(n)) for n in right),
        ]
    lines.append("leaf_value=" + words(rng.normal(size=leaves)))
    return "\n".join(lines)


def forest(seed: int, trees: int, most: int, thresholds: list[float]) -> Trees:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, trees)
    sizes[0] = most
    return read_trees("\n\n".join(tree_text(rng, int(size), thresholds) for size in sizes))


def masks_of(trees: Trees) -> LeafMasks:
    found = LeafMasks.of(trees)
    assert found is not None
    return found


def same_bits(trees: Trees, rows: Array) -> None:
    assert masks_of(trees).total(rows).tobytes() == total(trees, rows).tobytes()


@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.integers(2, MOST_LEAVES),
    st.lists(st.sampled_from(EDGES), min_size=1, max_size=12),
    st.integers(0, 40),
)
def test_masks_give_the_bits_of_a_walk_for_any_row(
    seed: int, trees: int, most: int, thresholds: list[float], count: int
) -> None:
    rng = np.random.default_rng(seed)
    near = [np.nextafter(edge, way) for edge in EDGES for way in (-np.inf, np.inf)]
    rows = rng.choice([*EDGES, *near, np.nan], (count, FEATURES))
    same_bits(forest(seed, trees, most, thresholds), rows)


@pytest.mark.parametrize("most", [2, 8, 9, 16, 17, 32, 33, 63, 64])
def test_every_width_of_mask_gives_the_bits_of_a_walk(most: int) -> None:
    rng = np.random.default_rng(most)
    thresholds = [float(value) for value in rng.normal(size=400)]
    trees = forest(most, 150, most, thresholds)
    for count in (1, 7, 300, 3000):
        rows = rng.choice([*thresholds, *rng.normal(size=400)], (count, FEATURES))
        same_bits(trees, rows)


def test_a_row_gets_the_same_bits_alone_and_among_others() -> None:
    rng = np.random.default_rng(3)
    masks = masks_of(forest(3, 200, 31, [float(value) for value in rng.normal(size=90)]))
    rows = rng.normal(size=(700, FEATURES))
    whole = masks.total(rows)
    alone = np.concatenate([masks.total(rows[at : at + 1]) for at in range(0, 700, 7)])
    np.testing.assert_array_equal(whole[::7], alone)
    assert masks.total(rows[:0]).shape == (0,)


@pytest.mark.parametrize("leaves", [5, 31, 63])
def test_masks_give_the_bits_of_lightgbm(leaves: int) -> None:
    rng = np.random.default_rng(leaves)
    learned = rng.choice(rng.normal(size=60), (1500, 7))
    target = learned[:, 0] * learned[:, 1] + np.sin(4 * learned[:, 2]) + rng.normal(size=1500)
    settings = {"num_leaves": leaves, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 2}
    grown = lightgbm.train(settings, lightgbm.Dataset(learned, target), 60)
    trees = read_trees(grown.model_to_string())
    limits = trees.threshold[np.isfinite(trees.threshold)]
    # LightGBM takes values nearer to 0 than 1e-35 for 0, and grows thresholds at 1e-35
    asked = rng.choice([*limits[np.abs(limits) > 1e-30], *rng.normal(size=500), 0.0], (2000, 7))
    theirs = np.asarray(grown.predict(asked, num_threads=1))
    assert masks_of(trees).total(asked).tobytes() == theirs.tobytes()
    assert total(trees, asked).tobytes() == theirs.tobytes()
    read, own = TextTrees(grown.model_to_string()), TextTrees.grown(grown)
    assert read.text == own.text
    assert read.total(asked).tobytes() == own.total(asked).tobytes() == theirs.tobytes()


def test_the_leaves_of_a_small_tree_by_hand() -> None:
    """Root: x0 <= 1, its left child: x1 <= 5, its right child: x0 <= 2."""
    trees = read_trees(
        "num_leaves=4\nsplit_feature=0 1 0\nthreshold=1 5 2\ndecision_type=2 2 2\n"
        "left_child=1 -1 -2\nright_child=2 -3 -4\nleaf_value=10 20 30 40"
    )
    masks = masks_of(trees)
    # from left to right: leaves 0 and 2 below the left child, 1 and 3 below the right one
    assert masks.values.tolist() == [10.0, 30.0, 20.0, 40.0]
    asked = np.array([[1.0, 5.0], [1.0, 5.5], [1.5, 0.0], [2.0, 9.0], [2.5, 0.0], [np.nan, 0.0]])
    assert masks.total(asked).tolist() == [10.0, 30.0, 20.0, 20.0, 40.0, 40.0]


def test_trees_without_masks_are_walked() -> None:
    rng = np.random.default_rng(0)
    rows = rng.choice([*EDGES, np.nan], (50, FEATURES))
    large = tree_text(rng, MOST_LEAVES + 1, EDGES)
    strange = tree_text(rng, 9, [1.0, np.nan])
    meeting = (  # both children of the root are the same node
        "num_leaves=3\nsplit_feature=0 1\nthreshold=0 0\ndecision_type=2 2\n"
        "left_child=1 -1\nright_child=1 -2\nleaf_value=1 2 4"
    )
    depth = 20_000
    chain = "\n".join(
        [
            f"num_leaves={depth + 1}",
            "split_feature=" + "0 " * depth,
            "threshold=" + "0 " * depth,
            "decision_type=" + "2 " * depth,
            "left_child=" + " ".join(str(-1 - n) for n in range(depth)),
            "right_child=" + " ".join([*map(str, range(1, depth)), str(-1 - depth)]),
            "leaf_value=" + "1 " * (depth + 1),
        ]
    )
    for text in (large, strange, meeting, chain):
        trees = read_trees(text)
        assert LeafMasks.of(trees) is None
    for text in (large, strange, meeting):
        asked = TextTrees(text).total(rows)
        assert asked.tobytes() == total(read_trees(text), rows).tobytes()
    leaves = read_trees("\n".join(tree_text(rng, 1, EDGES) for _ in range(3)))
    assert LeafMasks.of(leaves) is None
    assert LeafMasks.of(Trees.none()) is None


def test_tables_keep_to_the_memory_that_they_are_given() -> None:
    rng = np.random.default_rng(1)
    trees = forest(1, 40, 31, [float(value) for value in rng.normal(size=200)])
    size = masks_of(trees).tables.nbytes
    assert LeafMasks.of(trees, most_bytes=size - 1) is None
    assert LeafMasks.of(trees, most_bytes=size) is not None
    # 40 trees of up to 31 leaves: a mask of 4 bytes for each line, a line more than thresholds
    assert size % (40 * 4) == 0


def test_a_feature_that_is_not_there_is_refused() -> None:
    trees = forest(0, 3, 9, [0.0])
    with pytest.raises(BundleError, match="more features"):
        masks_of(trees).total(np.zeros((4, 1)))


def test_trees_with_formulas_in_their_leaves_are_refused() -> None:
    text = tree_text(np.random.default_rng(0), 5, [0.0])
    assert len(read_trees(text + "\nis_linear=0").roots) == 1
    with pytest.raises(BundleError, match="more than a number"):
        read_trees(text + "\nis_linear=1")
