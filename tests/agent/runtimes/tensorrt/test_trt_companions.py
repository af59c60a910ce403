"""Models of several files on TensorRT's double: the parser reads the files that were uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.bench.bench import Bench
from tests.agent.runtimes.tensorrt.test_conformance import make_bench
from tests.agent.runtimes.test_onnx_companions import DATA, measured, put, two_files

PLATFORM = "board-tensorrt10.3-fp32"


@pytest.fixture(scope="class", name="bench")
def _bench(
    gpu_host: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    made = make_bench(tmp_path_factory.mktemp("tensorrt"))
    yield made
    made.close()


class TestCompanions:
    @pytest.mark.parametrize("profile", [False, True])
    def test_a_model_of_two_files_is_measured(
        self, bench: Bench, tmp_path: Path, profile: bool
    ) -> None:
        data, model = put(tmp_path, DATA), put(tmp_path, two_files())
        result = measured(bench, PLATFORM, model, {"weights": data.name}, profile=profile)
        assert result.outcome == "ok", result.error_message
        assert result.sessions[0].runs_ms

    @pytest.mark.parametrize(
        ("location", "uploaded"),
        [
            ("weights", ()),
            ("weights", ("Weights",)),
            ("./weights", ("weights",)),
            ("../weights", ("weights",)),
            ("sub/weights", ("weights",)),
            ("*/_ORT_MEM_ADDR_/*", ("weights",)),
        ],
    )
    def test_a_reference_to_anything_else_is_refused(
        self, bench: Bench, tmp_path: Path, location: str, uploaded: tuple[str, ...]
    ) -> None:
        data = put(tmp_path, DATA)
        (tmp_path / "weights").write_bytes(DATA)
        model = put(tmp_path, two_files(location))
        result = measured(bench, PLATFORM, model, dict.fromkeys(uploaded, data.name))
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_INVALID")
        assert f"refers to {location!r}" in result.error_message

    def test_weights_behind_the_end_are_a_failure_of_the_model(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        data, model = put(tmp_path, DATA), put(tmp_path, two_files(offset=1 << 20))
        result = measured(bench, PLATFORM, model, {"weights": data.name})
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_INVALID")
        assert "ends before the weights of far" in result.error_message

    def test_a_companion_that_was_changed_is_not_used(self, bench: Bench, tmp_path: Path) -> None:
        data, model = put(tmp_path, DATA), put(tmp_path, two_files())
        data.write_bytes(DATA + b"!")
        result = measured(bench, PLATFORM, model, {"weights": data.name})
        assert (result.outcome, result.error_code) == ("infrastructure_error", "BLOB_MISSING")
