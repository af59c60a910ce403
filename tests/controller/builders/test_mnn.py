"""MNN models: they compute what the ONNX model of the same graph computes."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from latfarm_controller import zoo
from latfarm_controller.builders import build
from latfarm_controller.builders.mnn.build import MnnModel, build_mnn
from latfarm_controller.builders.mnn.converter import (
    ConverterError,
    MnnConverter,
    convert,
    kept_converter,
)
from latfarm_controller.builders.noise import inputs
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
Make = Callable[[GraphBuilder], str]

# A hint that makes MNN use smaller Winograd tiles: with its largest tiles, a deep network loses
# three digits of precision.
_WINOGRAD_LEVEL, _SMALLER = 3, 1


def small(name: str, make: Make) -> Graph:
    b = GraphBuilder(name)
    return b.build([make(b)])


def reference(graph: Graph) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        build_onnx(graph), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(made) for made in session.run(None, inputs(graph, 1))]


def run(model: bytes, graph: Graph, folder: Path) -> Arrays:
    """Run a model in MNN on one thread; return all outputs for `inputs(graph, 1)`."""
    from MNN import expr, nn

    file = folder / "model.mnn"
    file.write_bytes(model)
    runtime = nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": 1},))
    runtime.set_hint(_WINOGRAD_LEVEL, _SMALLER)
    module = nn.load_module_from_file(
        str(file), list(graph.inputs), list(graph.outputs), runtime_manager=runtime
    )
    fed = []
    for data in inputs(graph, 1).values():
        whole = data.dtype.kind == "i"
        array = np.ascontiguousarray(data, np.int32 if whole else np.float32)
        kind = expr.int if whole else expr.float
        fed.append(expr.const(array, list(array.shape), expr.NCHW, kind))
    made = module.forward(fed)
    found = []
    for variable, tensor in zip(
        made if isinstance(made, list | tuple) else [made], graph.outputs, strict=True
    ):
        if variable.data_format == expr.NC4HW4:
            variable = expr.convert(variable, expr.NCHW)
        found.append(np.array(variable.read()).reshape(graph.type_of(tensor).shape))
    return found


def worst(expected: Arrays, found: Arrays) -> float:
    """Return the largest error of all outputs.

    The error of an output is divided by the largest absolute value that is expected in it.
    """
    return max(
        float(np.abs(e.astype(np.float64) - f).max() / max(np.abs(e).max(), 1e-9))
        for e, f in zip(expected, found, strict=True)
    )


def agrees(graph: Graph, folder: Path, limit: float = 1e-5) -> None:
    assert worst(reference(graph), run(build_mnn(graph), graph, folder)) < limit


def image(b: GraphBuilder) -> str:
    return b.input((1, 8, 13, 11))


def less(b: GraphBuilder) -> str:
    return b.op("Cast", [b.op("Less", [image(b), image(b)])], {"to": 1})


def resized(scale: float, **attrs: str) -> Make:
    scales = (1.0, 1.0, scale, scale)
    return lambda b: b.op("Resize", [image(b), "", b.weight((4,), values=scales)], attrs)


# Graphs with ops that MNN's converter or engine interprets differently from the ONNX standard,
# unless the builder first writes them in another form.
RESPELT: dict[str, Make] = {
    "batch-norm": lambda b: b.batch_norm(image(b)),
    "instance-norm": lambda b: b.op(
        "InstanceNormalization", [image(b), b.weight((8,)), b.weight((8,))]
    ),
    "less": less,
    "dropout": lambda b: b.op("Dropout", [image(b)]),
    "sum-broadcast": lambda b: b.op("Sum", [image(b), image(b), b.input((13, 1))]),
    "max-broadcast": lambda b: b.op("Max", [image(b), image(b), b.input((13, 1))]),
    "mean-broadcast": lambda b: b.op("Mean", [image(b), b.input((11,))]),
    "mean": lambda b: b.op("Mean", [image(b), image(b), image(b)]),
}


def test_every_op_agrees_with_onnxruntime(small_graph: Graph, tmp_path: Path) -> None:
    agrees(small_graph, tmp_path)


@pytest.mark.parametrize("name", RESPELT)
def test_respelt_ops_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    agrees(small(name, RESPELT[name]), tmp_path, 1e-6)


def _one_of_each() -> Iterator[str]:
    """Yield the name of the first network family in each module of the zoo."""
    seen: set[str] = set()
    for name, family in zoo.families().items():
        if family.module not in seen:
            yield name
        seen.add(family.module)


@pytest.mark.parametrize("name", list(_one_of_each()))
def test_networks_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    family = zoo.find(name)[0]
    reduced = 32 if family.resolution <= 64 or family.task == "language" else 96
    if family.task == "detection":
        reduced = 64
    agrees(zoo.build(name, width=0.25, resolution=reduced), tmp_path, 1e-3)


def test_real_networks_agree_with_onnxruntime(
    light_models: dict[str, Path], tmp_path: Path
) -> None:
    agrees(read_onnx(light_models["shufflenet"]), tmp_path, 1e-3)


def test_kernels_agree_with_onnxruntime(tmp_path: Path) -> None:
    for kernel in KernelPrior(seed=5, max_bytes=2_000_000).draw(25, FusionRules.none()):
        agrees(kernel.graph, tmp_path, 1e-4)


def test_batches_are_kept(tmp_path: Path) -> None:
    agrees(zoo.build("shufflenet-v2", width=0.5, resolution=64, batch=3), tmp_path, 1e-3)


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    import MNN

    graph = zoo.build("squeezenet", width=0.25, resolution=96)
    model = build(graph, "mnn", "fp32")
    assert build(Graph.from_json(graph.to_json()), "mnn", "fp32") == model
    (tmp_path / "a.mnn").write_bytes(model)
    other = zoo.build("squeezenet", width=0.5, resolution=96)
    (tmp_path / "b.mnn").write_bytes(build_mnn(other))
    marks = [MNN.get_model_uuid(str(tmp_path / name)) for name in ("a.mnn", "b.mnn")]
    assert len(set(marks)) == 2
    assert all(len(mark) == 36 for mark in marks)


def test_given_weights_are_used() -> None:
    graph = small("own", lambda b: b.conv(image(b), 12, 3))
    own = {"weight_0": np.full((12, 8, 3, 3), 0.0107421875, np.float32)}
    pattern = own["weight_0"].tobytes()[:64]
    assert pattern in build_mnn(graph, "fp32", own)
    assert pattern not in build_mnn(graph)


@pytest.mark.parametrize(
    ("message", "make"),
    [
        (
            r"'maxpool_0' \(MaxPool\): a dilated pool",
            lambda b: b.op("MaxPool", [image(b)], {"kernel_shape": (3, 3), "dilations": (2, 2)}),
        ),
        (
            r"\(Mod\): a remainder with the sign",
            lambda b: b.op("Mod", [image(b), image(b)], {"fmod": 1}),
        ),
        (
            r"\(Resize\): cubic interpolation by half_pixel",
            resized(2.0, mode="cubic", coordinate_transformation_mode="half_pixel"),
        ),
        (
            r"\(Resize\): nearest pixels at scales",
            resized(
                1.7,
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
        ),
        (
            r"'relu_1' \(Relu\): MNN's converter loses the output",
            lambda b: b.relu(b.conv(b.input((1, 4, 6, 7, 8)), 6, 3)),
        ),
    ],
)
def test_what_mnn_gets_wrong_is_refused_by_name(message: str, make: Make) -> None:
    with pytest.raises(BuildError, match=message):
        build_mnn(small("odd", make))


def test_an_op_that_the_converter_does_not_know_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(onnx: bytes, options: object) -> bytes:
        raise ConverterError("it refused the model", "These Op Not Support: ONNX::Erf")

    monkeypatch.setattr("latfarm_controller.builders.mnn.build.convert", refuse)
    with pytest.raises(BuildError, match=r"node 'erf_0' \(Erf\): MNN has no operator"):
        build_mnn(small("erf", lambda b: b.op("Erf", [image(b)])))


def test_only_float32_is_built() -> None:
    with pytest.raises(BuildError, match="mnn is built as fp32 or fp16, not 'int8'"):
        build_mnn(small("relu", lambda b: b.relu(image(b))), "int8")


def test_what_is_no_model_is_refused_with_the_converters_words() -> None:
    with pytest.raises(ConverterError, match="Model file is not onnx model"):
        convert(b"garbage" * 10)
    with pytest.raises(BuildError, match="wrote no model"):
        MnnModel(b"MN")
    agrees_in_bytes = small("relu", lambda b: b.relu(image(b)))
    assert build_mnn(agrees_in_bytes) == build_mnn(agrees_in_bytes)


@pytest.fixture
def converter(tmp_path: Path) -> Iterator[Callable[[str], MnnConverter]]:
    """Return a function that makes a converter which runs a given program instead of MNN.

    The process reads one request before it runs the program.
    """
    made: list[MnnConverter] = []

    def make(program: str) -> MnnConverter:
        path = tmp_path / "worker.py"
        path.write_text(f"import os, signal, sys\nsys.stdin.readline()\n{program}\n")
        made.append(MnnConverter(path, longest_s=20.0 if "kill" in program else 0.2))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_crash_is_an_error_and_the_next_model_is_built(
    converter: Callable[[str], MnnConverter], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small("relu", lambda b: b.relu(image(b)))
    dying = converter("os.kill(os.getpid(), signal.SIGSEGV)")
    with monkeypatch.context() as patched:
        patched.setattr("latfarm_controller.builders.mnn.build.convert", dying.convert)
        with pytest.raises(BuildError, match="MNN's converter: it died of SIGSEGV"):
            build_mnn(graph)
    assert not dying.fresh
    assert MnnModel(build_mnn(graph)).tensors >= {"input", "relu_0"}


def test_no_answer_is_an_error(converter: Callable[[str], MnnConverter]) -> None:
    silent = converter("signal.pause()")
    with pytest.raises(ConverterError, match="no answer within"):
        silent.convert(b"", ())
    assert not silent.fresh


def test_the_process_stays_warm_and_ends_with_its_owner(tmp_path: Path) -> None:
    graph = small("relu", lambda b: b.relu(image(b)))
    build_mnn(graph)
    first = kept_converter()
    build_mnn(graph)
    assert kept_converter() is first
    program = (
        "import sys\n"
        "from latfarm_controller.builders.mnn import converter as mnn_converter\n"
        "try: mnn_converter.convert(b'no model')\n"
        "except mnn_converter.ConverterError: pass\n"
        "one = mnn_converter.kept_converter()\n"
        "print(one.pid, one.folder)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(told[0]), signal.SIG_DFL)
    assert not Path(told[1]).exists()


def test_without_mnn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"pip install latfarm-controller\[mnn\]"):
        MnnConverter()


def test_nothing_of_ours_imports_what_installs_packages() -> None:
    """No file of the project imports `MNN.tools`: it runs pip on import, to send usage data."""
    root = Path(__file__).parents[3]
    for folder in ("agent", "benchmarks", "controller", "predictors", "tests"):
        for file in (root / folder).rglob("*.py"):
            tree = ast.parse(file.read_text())
            names = {
                name
                for node in ast.walk(tree)
                for name in (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [f"{node.module}.{alias.name}" for alias in node.names]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
            }
            assert not any(name.startswith("MNN.tools") for name in names), file


BUILD_MANY = """
import hashlib
from latfarm_controller import zoo
from latfarm_controller.builders.mnn.build import build_mnn

graph = zoo.build("alexnet", width=0.25)
print({hashlib.sha256(build_mnn(graph)).hexdigest() for _ in range(6)})
"""


def test_converters_beside_each_other_do_not_mix_up_their_weights(tmp_path: Path) -> None:
    """Converters that run at the same time do not read each other's temporary files.

    MNN's converter writes weights to a temporary file in the working directory, always under the
    same name.
    """
    command = [sys.executable, "-c", BUILD_MANY]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(3)
    ]
    told = [process.communicate(timeout=100)[0].strip().splitlines()[-1] for process in running]
    assert len(set(told)) == 1
    assert told[0].count("'") == 2  # the printed set holds one hash
    assert not any(tmp_path.iterdir())
