"""A profile of ncnn on the CPU does what a run does, and nothing besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.runtimes.base import Job
from latfarm_agent.runtimes.ncnn.runtime import NcnnRuntime
from tests.agent.runtimes.test_conformance import write_ncnn

pytest.importorskip("ncnn")


class Watched:
    """An extractor that notes how it is used, and the last result that it gave."""

    def __init__(self, extractor: Any) -> None:
        self._extractor = extractor
        self.light: bool | None = None
        self.allocators: list[Any] = []
        self.layouts: dict[str, int] = {}
        self.last: Any = None

    def __enter__(self) -> Watched:
        self._extractor.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._extractor.__exit__(*error)

    def set_light_mode(self, light: bool) -> None:
        self.light = light
        self._extractor.set_light_mode(light)

    def set_blob_allocator(self, allocator: Any) -> None:
        self.allocators.append(allocator)
        self._extractor.set_blob_allocator(allocator)

    def input(self, name: str, blob: Any) -> int:
        return int(self._extractor.input(name, blob))

    def extract(self, name: str, layout: int = 0) -> tuple[int, Any]:
        self.layouts[name] = layout
        code, found = self._extractor.extract(name, layout)
        if code == 0 and found.elempack == 1:
            self.last = found.numpy().copy()
        return code, found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """All extractors that were made."""
    made: list[Watched] = []
    load = NcnnRuntime._load

    class Net:
        def __init__(self, net: Any) -> None:
            self._net = net

        def create_extractor(self) -> Watched:
            made.append(Watched(self._net.create_extractor()))
            return made[-1]

        def __getattr__(self, name: str) -> Any:
            return getattr(self._net, name)

    def watched_load(self: NcnnRuntime, job: Job) -> Any:
        net, feeds = load(self, job)
        return Net(net), feeds

    monkeypatch.setattr(NcnnRuntime, "_load", watched_load)
    return made


def test_a_profile_copies_and_converts_no_results(watched: list[Watched], tmp_path: Path) -> None:
    runtime = NcnnRuntime(vulkan=False)
    (spec,) = runtime.describe().platforms
    job = Job(write_ncnn(tmp_path / "model"), spec.settings, spec.dtype, tmp_path)
    layers = runtime.profile(job, 2)
    assert [layer.op for layer in layers] == ["Convolution", "ReLU", "BinaryOp"]
    assert len(watched) >= 2
    for extractor in watched:
        assert extractor.light
        assert len(extractor.allocators) == 1
        assert extractor.layouts == {"c0": 1, "r0": 1, "out0": 1}


def test_a_profile_computes_what_a_run_computes(watched: list[Watched], tmp_path: Path) -> None:
    runtime = NcnnRuntime(vulkan=False)
    (spec,) = runtime.describe().platforms
    job = Job(write_ncnn(tmp_path / "model", "mixed"), spec.settings, spec.dtype, tmp_path)
    runtime.prepare(job)
    runtime.run()
    from_run = watched[-1].last
    runtime.profile(job, 2)
    assert from_run is not None
    assert (watched[-1].last == from_run).all()
