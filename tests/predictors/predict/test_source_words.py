"""Sources of kernels in words."""

from __future__ import annotations

import re
from pathlib import Path

import latfarm_predictors
import pytest
from latfarm_predictors.predict.source_words import in_words, missing_dtype

SOURCES = Path(latfarm_predictors.__file__).parent


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("gp", "learned from kernels like it"),
        ("measured", "measured as it is"),
        ("fallback:family:fc", "guessed from other fc ops"),
        ("fallback:nearest:conv", "guessed from conv kernels, the nearest kind"),
        ("fallback:beyond:dwconv", "far larger than all measured dwconv kernels"),
        ("fallback:dtype:float16", "never measured with float16"),
    ],
)
def test_sources_are_told_in_words(source: str, words: str) -> None:
    assert in_words(source) == words


def test_no_source_of_the_code_is_left_without_words() -> None:
    text = "".join(path.read_text() for path in SOURCES.rglob("*.py") if "words" not in path.name)
    kinds = set(re.findall(r'"(fallback:[a-z]+)[:"]', text)) - {"fallback:beyond"}
    assert {"fallback:view", "fallback:analytic", "fallback:roofline"} <= kinds
    for kind in kinds:
        assert not in_words(kind if kind.count(":") > 1 else f"{kind}:x").startswith(
            "fallback:"
        ) or (not in_words(kind).startswith("fallback:")), kind
    assert in_words("something new") == "something new"


def test_a_type_that_was_never_measured_is_found() -> None:
    assert missing_dtype("fallback:dtype:float16") == "float16"
    assert missing_dtype("gp") == missing_dtype("fallback:family:conv") == ""
