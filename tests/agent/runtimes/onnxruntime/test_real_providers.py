"""Tests on real execution providers: Intel's on the CPU, and the emulator of Qualcomm's HTP.

Both need an environment of their own: one with `onnxruntime-openvino`, one with `onnxruntime` and
`onnxruntime-qnn`. Two environment variables name the interpreters of these environments.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Callable

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure

REFERENCE = {"onnxruntime": "latfarm_agent.runtimes.onnxruntime.runtime:OnnxRuntime"}
OPENVINO = "LATFARM_PYTHON_ONNXRUNTIME_OPENVINO"
QNN = "LATFARM_PYTHON_ONNXRUNTIME_QNN"
ONE = changed(QUICK, sessions=1)


def interpreter(variable: str) -> str:
    python = os.environ.get(variable, "")
    if not python:
        pytest.skip(f"{variable} names no interpreter with this provider")
    return python


def bench_of(folder: Path, python: str, providers: Any) -> Bench:
    options = {"providers": providers} if providers else {}
    config = AgentConfig(runtimes={"onnxruntime": RuntimeConfig(python, options)})
    return host_bench(
        BenchOptions("board", "hw", folder, runtimes=REFERENCE, config=config, limits=PATIENT)
    )


def write_split(path: Path) -> Path:
    """Write a network with two determinants, which no accelerator computes."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c0"], "conv0", **pads),
        helper.make_node("Relu", ["c0"], ["r0"], "relu0"),
        helper.make_node("MatMul", ["r0", "r0"], ["p0"], "matmul0"),
        helper.make_node("Det", ["p0"], ["d0"], "det0"),
        helper.make_node("Relu", ["d0"], ["e0"], "relu1"),
        helper.make_node("Unsqueeze", ["e0", "axes"], ["u0"], "unsqueeze0"),
        helper.make_node("Mul", ["r0", "u0"], ["m0"], "mul0"),
        helper.make_node("Conv", ["m0", "w"], ["c1"], "conv1", **pads),
        helper.make_node("Relu", ["c1"], ["r1"], "relu2"),
        helper.make_node("Det", ["r1"], ["d1"], "det1"),
        helper.make_node("Unsqueeze", ["d1", "axes"], ["u1"], "unsqueeze1"),
        helper.make_node("Add", ["r1", "u1"], ["y"], "add1"),
    ]
    shape = [1, 4, 8, 8]
    graph = helper.make_graph(
        nodes,
        "split",
        [helper.make_tensor_value_info("x", kinds.FLOAT, shape)],
        [helper.make_tensor_value_info("y", kinds.FLOAT, shape)],
        [
            helper.make_tensor("w", kinds.FLOAT, [4, 4, 3, 3], [0.01] * 144),
            helper.make_tensor("axes", kinds.INT64, [2], [2, 3]),
        ],
    )
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


NODES = {
    *("conv0", "relu0", "matmul0", "det0", "relu1", "unsqueeze0", "mul0", "conv1", "relu2"),
    *("det1", "unsqueeze1", "add1"),
}


def check_pieces(bench: Bench, platform: str, model: Path, provider: str) -> None:
    """Check that each node ran once, and that the profile and the conditions agree on where."""
    result = measure(bench, platform, model, settings=ONE, profile=True)
    assert result.outcome == "ok", result.error_message
    places = [(name, layer.device) for layer in result.layers for name in layer.name.split("+")]
    assert sorted(name for name, _ in places) == sorted(NODES)
    assert {device for _, device in places} == {provider, "CPUExecutionProvider"}
    left = {name for name, device in places if device != provider}
    assert {"det0", "det1"} <= left
    told = {entry.split(" (")[0] for entry in result.conditions["on_cpu"].split(", ")}
    assert told == left
    assert result.conditions["nodes_on_cpu"].startswith(f"{len(left)} of ")
    assert any(layer.name.startswith("conv0+relu0") for layer in result.layers)
    assert result.sessions[0].compile_ms > 0


def test_openvino(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    bench = bench_of(tmp_path / "work", interpreter(OPENVINO), None)
    try:
        (mine,) = bench.describe()[1]
        (platform,) = [e.name for e in mine.platforms if e.name.endswith("-openvino-fp32-1t")]
        check_pieces(bench, platform, write_split(tmp_path / "m"), "OpenVINOExecutionProvider")
        whole = measure(bench, platform, onnx_file(tmp_path / "w"), settings=ONE, profile=True)
        assert whole.conditions["nodes_on_cpu"].startswith("0 of ")
        assert [layer.name for layer in whole.layers] == ["conv0+bn0+relu0+conv1+add1+sigmoid1"]
        wrong = measure(bench, platform, onnx_file(tmp_path / "c", "custom"), settings=ONE)
        assert wrong.error_code == "MODEL_UNSUPPORTED"
    finally:
        bench.close()


def test_qnn(tmp_path: Path) -> None:
    python = interpreter(QNN)
    ask = "import onnxruntime_qnn as q; print(q.get_library_path()); print(q.get_qnn_htp_path())"
    said = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    library, backend = said.stdout.split()
    entry = {
        "name": "QNNExecutionProvider",
        "library": library,
        "options": {"backend_path": backend},
        "dtypes": ["fp32"],
    }
    bench = bench_of(tmp_path / "work", python, [entry])
    try:
        (mine,) = bench.describe()[1]
        (platform,) = [e.name for e in mine.platforms if e.name.endswith("-qnn-fp32")]
        model = write_split(tmp_path / "m")
        check_pieces(bench, platform, model, "QNNExecutionProvider")
    finally:
        bench.close()
    # Without a back end, onnxruntime itself would run all on the CPU and still list QNN.
    entry["options"] = {"backend_path": str(Path(backend).with_name("libQnnNowhere.so"))}
    bench = bench_of(tmp_path / "work", python, [entry])
    try:
        result = measure(bench, platform, model, settings=ONE)
        assert result.error_code == "MODEL_UNSUPPORTED"
        assert "its backend does not load" in result.error_message
    finally:
        bench.close()
