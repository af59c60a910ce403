"""The garbage collector waits for blocks that overlap, and is then as it was."""

from __future__ import annotations

import gc

import pytest
from latfarm_predictors.collector import collector_waits


@pytest.fixture(autouse=True)
def on() -> None:
    assert gc.isenabled()


def test_it_waits_until_the_last_block_ends() -> None:
    first, second = collector_waits(), collector_waits()
    with first:
        assert not gc.isenabled()
        second.__enter__()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_it_goes_on_after_an_error_and_stays_off_where_it_was_off() -> None:
    with pytest.raises(KeyError), collector_waits():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_waits():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
