"""Models of several files in a farm: all files are uploaded, and old agents are spared them."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from latfarm_controller.farm.boards.board_worker import UPLOAD_FAILED
from latfarm_predictors.measurement import Outcome

from tests.controller.farm.conftest import Lab, collect

pytestmark = pytest.mark.timeout(120)
FILES = {"weights-0.bin": b"some weights", "weights-1.bin": b"more weights"}
HASHES = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


def test_all_files_of_a_model_are_uploaded_and_named(lab: Lab) -> None:
    board = lab.board("b", most_companions=2)
    lab.beside = FILES
    requests = [lab.request(i) for i in range(3)]

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", requests)
            answers = await collect(farm, "c", 3)
            assert all(answer.ok for answer in answers.values())

    asyncio.run(scenario())
    assert board.beside == HASHES
    assert set(HASHES.values()) < board.blobs


@pytest.mark.parametrize("most", [None, 1])
def test_a_board_that_takes_fewer_files_gets_none_of_them(lab: Lab, most: int | None) -> None:
    board = lab.board("old", most_companions=most)
    lab.beside = FILES

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", [lab.request(0)])
            (answer,) = (await collect(farm, "c", 1)).values()
            assert (answer.outcome, answer.error_code) == (
                Outcome.INFRASTRUCTURE_ERROR,
                UPLOAD_FAILED,
            )
            assert f"board old takes {most or 0} files beside a model" in answer.error_message
            assert "newer agent" in answer.error_message

    asyncio.run(scenario())
    assert not board.blobs


def test_another_board_of_the_pool_measures_it(lab: Lab) -> None:
    lab.board("old")
    new = lab.board("new", most_companions=64)
    lab.beside = FILES
    requests = [lab.request(i) for i in range(4)]

    async def scenario() -> None:
        async with lab.farm() as farm:
            await farm.wait_for("p", 60)
            farm.listen("c")
            farm.submit("c", requests)
            answers = await collect(farm, "c", 4)
            assert all(answer.ok for answer in answers.values()), answers

    asyncio.run(scenario())
    assert len(new.measured) == 4
