"""`latfarm predict --json` of very many models holds few answers at a time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest
from latfarm_controller.bulk import pool
from latfarm_controller.cli.answers import predict_files
from latfarm_predictors.errors import ModelFileError

Latfarm = Callable[..., Any]
FILES = 150
"""Number of files; far more than may be held."""
MOST_HELD = 2
"""Largest number of files whose answers the command holds: the one that it prints, and the next."""


class Told:
    """A prediction that can be counted."""

    def __init__(self, file: Path, platform: str) -> None:
        self._data = {"model": str(file), "platform": platform, "kernels": [{"ms": 0.5}, {}]}

    def to_json(self) -> dict[str, Any]:
        """What is printed."""
        return self._data


class Made:
    """Makes predictions one by one, and notes how many are alive.

    Args:
        stop_at: number of the file at which something happens.
        stop: what happens there.
    """

    def __init__(self, stop_at: int = -1, stop: BaseException | None = None) -> None:
        self.alive: weakref.WeakSet[Told] = weakref.WeakSet()
        self.most = 0
        self.closed = False
        self._stop_at, self._stop = stop_at, stop

    def outcomes(
        self, files: Sequence[Path], how: predict_files.HowToPredict, _workers: int | None
    ) -> Iterator[Any]:
        """Stands in the place of `predict_files.outcomes`."""
        try:
            for number, file in enumerate(files):
                if number == self._stop_at and isinstance(self._stop, ModelFileError):
                    yield self._stop
                    continue
                if number == self._stop_at and self._stop is not None:
                    raise self._stop
                yield self._told(file, how.platforms)
                self.most = max(self.most, len(self.alive))
        finally:
            self.closed = True

    def _told(self, file: Path, platforms: Sequence[str]) -> list[Told]:
        told = [Told(file, platform) for platform in platforms]
        self.alive.update(told)
        return told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    for number in range(FILES):
        (made / f"net{number:03}.onnx").touch()
    return made


def expected(folder: Path, platforms: Sequence[str]) -> list[dict[str, Any]]:
    files = sorted(folder.iterdir())
    return [Told(file, platform).to_json() for platform in platforms for file in files]


@pytest.mark.parametrize("platforms", [("a",), ("a", "b", "c")])
def test_answers_are_printed_as_they_come(
    latfarm: Latfarm, folder: Path, platforms: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made()
    monkeypatch.setattr(predict_files, "outcomes", made.outcomes)
    ended = latfarm("predict", folder, "--json", *(w for name in platforms for w in ("-p", name)))
    assert ended.code == 0, ended.err
    assert ended.out == json.dumps(expected(folder, platforms), indent=2) + "\n"
    assert 0 < made.most <= MOST_HELD * len(platforms)


def test_an_interrupted_list_is_no_whole_document(
    latfarm: Latfarm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(100, KeyboardInterrupt())
    monkeypatch.setattr(predict_files, "outcomes", made.outcomes)
    ended = latfarm("predict", folder, "--json", "-p", "a", "-p", "b")
    assert ended.code == 130
    assert ended.line == "latfarm: interrupted"
    assert made.closed
    assert json.loads(ended.out + "]") == expected(folder, "a")[:100]
    with pytest.raises(json.JSONDecodeError):
        json.loads(ended.out)


def test_a_file_that_cannot_be_read_is_left_out_of_the_list(
    latfarm: Latfarm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(0, ModelFileError("net000.onnx: no model"))
    monkeypatch.setattr(predict_files, "outcomes", made.outcomes)
    ended = latfarm("predict", folder, "--json", "-p", "a")
    assert ended.code == 2
    assert "net000.onnx" in ended.line
    assert json.loads(ended.out) == expected(folder, "a")[1:]


def test_without_any_prediction_nothing_is_printed(
    latfarm: Latfarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(0, ModelFileError("net.onnx: no model"))
    monkeypatch.setattr(predict_files, "outcomes", made.outcomes)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "net.onnx").touch()
    ended = latfarm("predict", tmp_path / "one", "--json", "-p", "a")
    assert (ended.code, ended.out) == (2, "")


class Result:
    """What a worker tells of a file."""


class EagerPool:
    """A pool whose workers are quicker than any reader: each task is done when it is submitted."""

    alive: ClassVar[weakref.WeakSet[Result]] = weakref.WeakSet()

    def __init__(self, _workers: int) -> None:
        pass

    def __enter__(self) -> EagerPool:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def submit(
        self, _function: object, files: Sequence[Path], _how: object
    ) -> Future[list[Result]]:
        """A task that is done."""
        done: Future[list[Result]] = Future()
        results = [Result() for _ in files]
        self.alive.update(results)
        done.set_result(results)
        return done


def test_quick_workers_do_not_run_ahead_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "WorkerPool", EagerPool)
    monkeypatch.setattr(predict_files, "_predict_files", lambda files, *_: [None for _ in files])
    how = predict_files.HowToPredict(tmp_path, ("a",), 0.9, False, False, (), 0, (), False)
    files = [tmp_path / str(number) for number in range(3000)]
    count = most = 0
    for _ in predict_files.outcomes(files, how, 2):
        count += 1
        most = max(most, len(EagerPool.alive))
    assert count == len(files)
    assert most <= (2 * predict_files.AHEAD + 1) * predict_files.TOGETHER
