"""External delegates as platforms, tested with a real library that can also refuse and crash."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import OfferedRuntime
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.tflite.delegates import parse
from latfarm_agent.runtimes.tflite.runtime import TfliteRuntime
from latfarm_agent.runtimes.tflite.sessions import open_external
from latfarm_agent.testing.runtime_suite import RuntimeSuite, measure
from latfarm_agent.worker.pool import WorkerLimits

pytest.importorskip("ai_edge_litert.interpreter")

CHAIN = ["RELU", "TANH", "RELU6", "ADD", "TANH", "RELU"]
"""If a delegate takes relu, relu6 and add, it has three partitions; the CPU runs two operators."""

TFLITE = "latfarm_agent.runtimes.tflite.runtime:TfliteRuntime"
TAKEN = {"take": "relu,relu6,add"}


def entry(library: Path, **values: Any) -> dict[str, Any]:
    """Return a delegate as the agent's configuration has it; values of None are left out."""
    given = {"name": "vx", "library": str(library), "options": TAKEN, "dtypes": ["fp32"]}
    given.update(values)
    return {key: value for key, value in given.items() if value is not None}


def described(bench: Bench) -> OfferedRuntime:
    (mine,) = bench.describe()[1]
    return mine


def named(bench: Bench, part: str) -> str:
    (name,) = [entry.name for entry in described(bench).platforms if f"-{part}-" in entry.name]
    return str(name)


def test_one_platform_for_each_delegate_and_dtype(
    make_bench: Callable[..., Bench], library: Path
) -> None:
    bench = make_bench(
        entry(library, dtypes=["int8", "fp32"]),
        entry(library, name="ethosu", dtypes=["int8"], model_format="tflite-vela:ethos-u65-256"),
    )
    found = {p.name.split("-", 2)[2]: p for p in described(bench).platforms}
    assert list(found) == ["fp32-1t", "int8-1t", "vx-int8", "vx-fp32", "ethosu-int8"]
    assert found["vx-int8"].model_format == "tflite"
    assert found["ethosu-int8"].model_format == "tflite-vela:ethos-u65-256"
    assert not described(bench).missing
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    assert found["vx-int8"].settings["delegate_sha256"] == digest
    assert found["vx-int8"].settings["delegate_options"] == "take=relu,relu6,add"
    assert len({p.fingerprint for p in found.values()}) == len(found)


def test_another_library_is_another_fingerprint(
    make_bench: Callable[..., Bench], library: Path, tmp_path: Path
) -> None:
    changed_library = tmp_path / "libother.so"
    changed_library.write_bytes(library.read_bytes() + b"\0")
    before = described(make_bench(entry(library))).platforms[-1]
    after = described(make_bench(entry(changed_library))).platforms[-1]
    assert before.name == after.name
    assert before.fingerprint != after.fingerprint


def test_those_that_cannot_be_loaded_take_nothing_down(
    make_bench: Callable[..., Bench], library: Path, tmp_path: Path
) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("no library\n")
    bench = make_bench(
        entry(tmp_path / "libnowhere.so", name="absent"),
        entry(text, name="broken"),
        entry(library, name="refusing", options={"refuse": "no NPU on this board"}),
        entry(library, name="crashing", options={"crash": "create"}),
        entry(library, name="sound"),
    )
    mine = described(bench)
    assert mine.available
    offered = [platform.name.split("-", 2)[2] for platform in mine.platforms]
    assert offered == ["fp32-1t", "int8-1t", "sound-fp32"]
    reasons = dict(part.split(": ", 1) for part in mine.missing.split("; litert"))
    told = {name.split("-")[-1]: reason for name, reason in reasons.items()}
    assert set(told) == {"absent", "broken", "refusing", "crashing"}
    assert "is not there; install" in told["absent"]
    assert "cannot be loaded" in told["broken"]
    assert "no NPU on this board" in told["refusing"]
    assert "SIGSEGV" in told["crashing"]
    refused = measure(bench, "board-litert2.3-absent-fp32", text)
    assert refused.error_code == "RUNTIME_MISSING"
    assert "libnowhere.so is not there" in refused.error_message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delegate": []}, "option delegate is unknown; known: kernels, delegates"),
        ({"delegates": {}}, "option delegates must be a list"),
        ({"delegates": ["vx"]}, "option delegates[0] must be an object"),
        ({"delegates": [{"name": "vx"}]}, "delegates[0].library must be the absolute path"),
        ({"delegates": [{"name": "VX", "library": "/x"}]}, "delegates[0].name must be small"),
        ({"delegates": [{"name": "gpu", "library": "/x"}]}, "none of builtin, cpu, gpu"),
        (
            {"delegates": [{"name": "vx", "library": "/x"}, {"name": "vx", "library": "/y"}]},
            "delegates[1].name 'vx' is there already",
        ),
        (
            {"delegates": [{"name": "vx", "library": "/x", "dtypes": ["int4"]}]},
            "delegates[0].dtypes must be a list of fp32",
        ),
        (
            {"delegates": [{"name": "vx", "library": "/x", "options": {"a": []}}]},
            "delegates[0].options.a must be a text",
        ),
        (
            {"delegates": [{"name": "vx", "library": "/x", "model_format": "onnx"}]},
            "delegates[0].model_format must be",
        ),
        ({"delegates": [{"name": "vx", "library": "/x", "speed": 1}]}, "delegates[0].speed is unk"),
        ({"kernels": ["fast"]}, "option kernels must be a list of xnnpack"),
        ({"gpu": "yes"}, "option gpu must be true or false"),
        ({"cache_mb": -1}, "option cache_mb must be"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        TfliteRuntime(1, **options)
    assert failure.value.code == "RUNTIME_MISSING"
    assert said in failure.value.message
    assert "\n" not in failure.value.message


def test_profile_says_what_ran_where(
    make_bench: Callable[..., Bench], library: Path, chain: Callable[..., Path], tmp_path: Path
) -> None:
    bench = make_bench(entry(library))
    # Large enough that each operator takes longer than the clock around it.
    model = chain(tmp_path / "m.tflite", CHAIN, side=128)
    result = measure(bench, named(bench, "vx"), model, profile=True)
    assert result.outcome == "ok", result.error_message
    rows = [(layer.name, layer.op, layer.device) for layer in result.layers]
    assert rows == [
        ("t1", "Relu", "vx"),
        ("t2", "Tanh", "XNNPACK"),
        ("t3+t4", "Relu6+Add", "vx"),
        ("t5", "Tanh", "XNNPACK"),
        ("t6", "Relu", "vx"),
    ]
    assert all(layer.latency_ms > 0 for layer in result.layers)
    assert result.conditions["delegated_operators"] == "4 of 6"
    assert result.conditions["on_cpu"] == "Tanh 't2', Tanh 't5'"
    whole = measure(bench, named(bench, "vx"), chain(tmp_path / "w.tflite", ["RELU", "ADD"]))
    assert "on_cpu" not in whole.conditions
    none = measure(bench, named(bench, "vx"), chain(tmp_path / "n.tflite", ["TANH"]))
    assert none.conditions["delegated_operators"] == "0 of 1"
    assert none.conditions["on_cpu"] == "Tanh 't1'"


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_delegate_computes_what_the_cpu_does(
    library: Path, chain: Callable[..., Path], tmp_path: Path, dtype: str
) -> None:
    import numpy as np
    from ai_edge_litert import interpreter
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    model = chain(tmp_path / "m.tflite", CHAIN, dtype)
    (delegate,) = parse([entry(library, dtypes=[dtype])])
    session = open_external(interpreter, model, 1, delegate, tmp_path, None)
    session.run()
    taken = [step for step in session.steps() if session.names.get(step.delegate) == "vx"]
    assert len(taken) == 3
    mine = session.interpreter
    theirs = Interpreter(
        str(model), experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
    )
    theirs.allocate_tensors()
    theirs.set_tensor(0, mine.get_tensor(0))
    theirs.invoke()
    outcome, wanted = mine.get_tensor(6).astype(float), theirs.get_tensor(6).astype(float)
    assert np.abs(wanted).max() > 0
    # In int8, a value that was rounded differently is doubled by the addition behind it.
    assert np.abs(outcome - wanted).max() <= (3 if dtype == "int8" else 1e-6)


def test_a_crash_inside_harms_its_own_measurement_alone(
    make_bench: Callable[..., Bench], library: Path, chain: Callable[..., Path], tmp_path: Path
) -> None:
    bench = make_bench(
        entry(library, name="good"),
        entry(library, name="bad1", options={"crash": "prepare"}),
        entry(library, name="bad2", options={"crash": "invoke"}),
    )
    model = chain(tmp_path / "m.tflite", CHAIN)
    good = named(bench, "good")
    assert measure(bench, good, model).outcome == "ok"
    for bad in ("bad1", "bad2"):
        crashed = measure(bench, named(bench, bad), model)
        assert (crashed.outcome, crashed.error_code) == ("model_error", "MODEL_CRASHED")
        assert "SIGSEGV" in crashed.error_message
    assert measure(bench, good, model).outcome == "ok"


def test_loading_a_delegate_leaves_the_cpu_platform_alone(
    make_bench: Callable[..., Bench], library: Path, chain: Callable[..., Path], tmp_path: Path
) -> None:
    bench = make_bench(entry(library))
    model = chain(tmp_path / "m.tflite", CHAIN)
    cpu = described(bench).platforms[0].name
    for _ in range(2):
        plain = measure(bench, cpu, model, profile=True)
        assert {layer.device for layer in plain.layers} == {"XNNPACK"}
        assert "on_cpu" not in plain.conditions
        delegated = measure(bench, named(bench, "vx"), model, profile=True)
        assert "vx" in {layer.device for layer in delegated.layers}


def test_own_kernels_are_platforms_where_asked_for(
    make_bench: Callable[..., Bench], chain: Callable[..., Path], tmp_path: Path
) -> None:
    bench = make_bench(kernels=["xnnpack", "builtin", "reference"])
    model = chain(tmp_path / "m.tflite", CHAIN)
    for kernels in ("builtin", "reference"):
        platform = f"board-litert2.3-{kernels}-fp32-1t"
        result = measure(bench, platform, model, profile=True)
        assert result.outcome == "ok", result.error_message
        assert [layer.op for layer in result.layers] == [
            "Relu",
            "Tanh",
            "Relu6",
            "Add",
            "Tanh",
            "Relu",
        ]
        assert {layer.device for layer in result.layers} == {"CPU"}


class TestConformance(RuntimeSuite):
    """The conformance suite on the platform of a delegate."""

    runtime = "tflite"
    model_format = "tflite"
    library: Path

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _compiled(cls, library: Path) -> None:
        cls.library = library

    @pytest.fixture(autouse=True)
    def _chains(self, chain: Callable[..., Path]) -> None:
        self._write = chain

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        return cls._bench(directory, limits)

    @classmethod
    def _bench(cls, directory: Path, limits: WorkerLimits, **more: Any) -> Bench:
        options = {"kernels": [], "delegates": [entry(cls.library)], **more}
        config = AgentConfig(runtimes={"tflite": RuntimeConfig(options=options)})
        only = {"tflite": TFLITE}
        return host_bench(
            BenchOptions("board", None, directory, runtimes=only, config=config, limits=limits)
        )

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        return self._bench(directory, WorkerLimits(), **{option: 1})

    def make_model(self, directory: Path) -> Path:
        return self._write(directory / "model.tflite", CHAIN)

    def make_unsupported(self, directory: Path) -> Path | None:
        return self._write(directory / "custom.tflite", ["CUSTOM"])

    def make_greedy(self, directory: Path) -> Path | None:
        return self._write(directory / "greedy.tflite", ["RELU", "TANH"], side=16384)

    def make_lacking(self, directory: Path) -> Bench | None:
        folder = directory / "shadow"
        folder.mkdir()
        for package in ("ai_edge_litert", "tflite_runtime"):
            (folder / f"{package}.py").write_text("raise ImportError('not on this board')\n")
        return host_bench(
            BenchOptions(
                "board", None, directory, runtimes={"tflite": TFLITE}, search_path=[folder]
            )
        )

    def test_it_is_the_delegate_that_runs(self, bench: Bench, platform: str, model: Path) -> None:
        assert platform == "board-litert2.3-vx-fp32"
        result = measure(bench, platform, model)
        assert result.conditions["delegated_operators"] == "4 of 6"
