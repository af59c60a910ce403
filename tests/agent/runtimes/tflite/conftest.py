"""The compiled delegate for tests, and models of element-wise operators for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Sequence

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.worker.pool import WorkerLimits

SOURCE = Path(__file__).parent / "delegate.c"
TFLITE = "latfarm_agent.runtimes.tflite.runtime:TfliteRuntime"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The delegate of `delegate.c` as a shared library."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not here to compile the delegate")
    made = tmp_path_factory.mktemp("delegate") / "libtest_delegate.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(made), str(SOURCE), "-lm"], check=True, timeout=60)
    return made


def write_chain(path: Path, ops: Sequence[str], dtype: str = "fp32", side: int = 16) -> Path:
    """Write a TFLite file of element-wise operators, one after the other.

    "ADD" adds a tensor to itself. Tensor number i is named "t{i}", and operator number i makes
    tensor number i+1.
    """
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    flatbuffers = pytest.importorskip("flatbuffers")

    def tensor(index: int) -> Any:
        made = schema.TensorT()
        made.name, made.shape, made.buffer = f"t{index}".encode(), [1, side, side, 4], 0
        made.type = schema.TensorType.INT8 if dtype == "int8" else schema.TensorType.FLOAT32
        if dtype == "int8":
            made.quantization = schema.QuantizationParametersT()
            # The int8 kernel of TANH wants an output of this scale.
            after_tanh = index and ops[index - 1] == "TANH"
            made.quantization.scale = [1 / 128 if after_tanh else 0.05]
            made.quantization.zeroPoint = [0]
        return made

    codes = []
    operators = []
    for index, op in enumerate(ops):
        code = schema.OperatorCodeT()
        code.version = 2 if dtype == "int8" else 1
        code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, op)
        if op == "CUSTOM":
            code.customCode = b"NoSuchOp"
        codes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = index
        operator.inputs, operator.outputs = [index], [index + 1]
        if op == "ADD":
            operator.inputs = [index, index]
            operator.builtinOptionsType = schema.BuiltinOptions.AddOptions
            operator.builtinOptions = schema.AddOptionsT()
        operators.append(operator)
    graph = schema.SubGraphT()
    graph.name = b"main"
    graph.tensors = [tensor(index) for index in range(len(ops) + 1)]
    graph.inputs, graph.outputs, graph.operators = [0], [len(ops)], operators
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs = 3, codes, [graph]
    model.buffers = [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


@pytest.fixture
def chain() -> Callable[..., Path]:
    """`write_chain`."""
    return write_chain


Entry = Dict[str, Any]


def delegate_bench(directory: Path, limits: WorkerLimits, *entries: Entry, **options: Any) -> Bench:
    """Make a bench with the TFLite runtime and configured delegates."""
    config = AgentConfig(
        runtimes={"tflite": RuntimeConfig(options=dict(options, delegates=list(entries)))},
        confinement=Confinement(write=(str(directory.parent),)),  # the double writes what it did
    )
    return host_bench(
        BenchOptions(
            "board", None, directory, runtimes={"tflite": TFLITE}, config=config, limits=limits
        )
    )


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """`delegate_bench` in a folder of the test; its benches are closed after the test."""
    made = []

    def make(*entries: Entry, **options: Any) -> Bench:
        bench = delegate_bench(
            tmp_path / "work", WorkerLimits(busy_wait_s=0.0), *entries, **options
        )
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.close()
