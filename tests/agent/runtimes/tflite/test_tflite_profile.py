"""Times of XNNPACK's and the interpreter's own kernels: their names and where they ran."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Sequence

import pytest
from latfarm_agent.runtimes.base import Job, LayerTime, RuntimeFailure
from latfarm_agent.runtimes.tflite import profile
from latfarm_agent.runtimes.tflite import runtime as tflite
from latfarm_agent.runtimes.tflite.context import ExecutionStep, Scout
from latfarm_agent.runtimes.tflite.litert import CompiledModel, Event, LitertDevice
from latfarm_agent.runtimes.tflite.runtime import TfliteRuntime
from latfarm_agent.runtimes.tflite.sessions import open_interpreter
from latfarm_agent.runtimes.tflite.xnnpack import Group, lay_along, own_clamp
from latfarm_agent.runtimes.tflite_format.model import TfliteOperator, op_name

CONV = "Convolution (NHWC, F32) IGEMM"
FC = "Fully Connected (NC, F32) GEMM"
CLAMP = "Clamp (NC, F32)"


def operators(*codes: str) -> list[TfliteOperator]:
    """Make a chain of operators; each reads what the one before it makes, or "CODE<3" tensor 3."""
    found = []
    for index, text in enumerate(codes):
        code, _, reads = text.partition("<")
        inputs = tuple(int(part) for part in reads.split(",")) if reads else (index,)
        found.append(TfliteOperator(index, f"n{index}", op_name(code), code, inputs, (index + 1,)))
    return found


def laid(codes: Sequence[str], kernels: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    groups = lay_along(operators(*codes), kernels)
    return [("+".join(op.name for op in group.operators), group.kernels) for group in groups]


def test_activations_and_paddings_go_into_their_neighbours() -> None:
    codes = ["PAD", "CONV_2D", "RELU6", "DEPTHWISE_CONV_2D", "RELU", "CONV_2D"]
    assert laid(codes, [CONV, "Convolution (NHWC, F32) DWConv", FC]) == [
        ("n0+n1+n2", (0,)),
        ("n3+n4", (1,)),
        ("n5", (2,)),
    ]


def test_an_activation_with_a_kernel_of_its_own_was_not_fused() -> None:
    assert laid(["CONV_2D", "RELU", "CONV_2D"], [CONV, CLAMP, CONV]) == [
        ("n0", (0,)),
        ("n1", (1,)),
        ("n2", (2,)),
    ]


def test_an_activation_behind_other_operators_finds_its_own() -> None:
    # Two branches: both convolutions come first, then both activations, then the sum.
    codes = ["CONV_2D", "CONV_2D<0", "RELU<1", "RELU<2", "ADD<3,4"]
    assert laid(codes, [CONV, CONV, "Add (ND)"]) == [
        ("n0+n2", (0,)),
        ("n1+n3", (1,)),
        ("n4", (2,)),
    ]


def test_kernels_that_only_move_belong_to_the_operator_behind_them() -> None:
    codes = ["MEAN", "RESHAPE", "FULLY_CONNECTED"]
    kernels = ["Mean (ND) Reduce2", "Static Reshape (NC)", "Static Reshape (NC)", FC]
    found = laid(codes, kernels)
    assert [name for name, _ in found] == ["n0", "n1", "n2"]
    assert [number for _, numbers in found for number in numbers] == [0, 1, 2, 3]
    assert found[0] == ("n0", (0,))
    assert 3 in found[2][1]


def test_every_kernel_is_in_one_group_whatever_it_is_called() -> None:
    codes = ["CONV_2D", "NEW_OPERATOR", "CONV_2D", "CONCATENATION"]
    kernels = [CONV, "Something New (NC)", CONV, "Copy (NC)", "Copy (NC)"]
    assert laid(codes, kernels) == [("n0", (0,)), ("n1", (1,)), ("n2", (2,)), ("n3", (3, 4))]
    assert laid(["CONV_2D"], ["Unheard Of"]) == [("n0", (0,))]
    more = laid(["CONV_2D"], [CONV, CONV, CONV])
    assert more == [("n0", (0, 1, 2))]


def test_names_of_operators() -> None:
    assert op_name("DEPTHWISE_CONV_2D") == "DepthwiseConv2D"
    assert op_name("RELU6") == "Relu6"
    assert op_name("ethos-u") == "ethos-u"


def event(tag: str, number: int, *, inside: bool = True, ms: float = 1.0) -> Event:
    return Event(tag, inside, number, ms)


PLAN = [
    ExecutionStep(4, "TfLiteXNNPackDelegate", (0, 1), 9),
    ExecutionStep(2, "", (2,), 0),
    ExecutionStep(3, "X", (3,), 9),
]


def test_events_become_rows_of_the_plan() -> None:
    named = operators("CONV_2D", "RELU", "SOFTMAX", "CONV_2D")
    run = [event(CONV, 0), event("SOFTMAX", 2, inside=False, ms=2.0), event(CONV, 0, ms=3.0)]
    assert profile.by_events(PLAN, named, [run, run]) == [
        LayerTime("n0+n1", "Conv2D+Relu", 1.0, "XNNPACK"),
        LayerTime("n2", "Softmax", 2.0, "CPU"),
        LayerTime("n3", "Conv2D", 3.0, "XNNPACK"),
    ]


def test_an_activation_that_clamps_behind_a_sum_is_a_kernel_by_itself() -> None:
    # Both operators have a fused activation in the file; XNNPACK only fuses that of one of them.
    named = operators("CONV_2D", "ADD", "CONV_2D")
    plan = [ExecutionStep(3, "TfLiteXNNPackDelegate", (0, 1, 2), 9)]
    run = [
        event(CONV, 0, ms=3.0),
        event("Add (ND)", 1, ms=2.0),
        event(CLAMP, 2, ms=0.5),
        event(CONV, 3, ms=3.0),
    ]
    assert profile.by_events(plan, named, [run, run]) == [
        LayerTime("n0", "Conv2D", 3.0, "XNNPACK"),
        LayerTime("scratch_n1", "Add", 2.0, "XNNPACK"),
        LayerTime("n1", "Clamp", 0.5, "XNNPACK"),
        LayerTime("n2", "Conv2D", 3.0, "XNNPACK"),
    ]


def test_a_clamp_that_is_the_operator_is_one_row() -> None:
    named = operators("CONV_2D", "RELU")
    plan = [ExecutionStep(2, "TfLiteXNNPackDelegate", (0, 1), 9)]
    run = [event(CONV, 0, ms=3.0), event(CLAMP, 1, ms=0.5)]
    assert [row.name for row in profile.by_events(plan, named, [run, run])] == ["n0", "n1"]
    assert own_clamp(Group(tuple(operators("RELU")), (0,)), [CLAMP]) == 0
    assert own_clamp(Group(tuple(operators("SOFTMAX")), (0, 1)), ["Copy (NC)", "Softmax"]) == 0


@pytest.mark.parametrize(
    "runs",
    [
        [[event(CONV, 0), event("SOFTMAX", 1, inside=False), event(CONV, 0)]],
        [[event(CONV, 0), event("SOFTMAX", 2, inside=False)]],
        [[event("SOFTMAX", 2, inside=False), event(CONV, 0)]],
        [[event(CONV, 0), event("SOFTMAX", 2, inside=False), event(CONV, 0), event(CONV, 0)]],
        [
            [event(CONV, 0), event("SOFTMAX", 2, inside=False), event(CONV, 0)],
            [event(FC, 0), event("SOFTMAX", 2, inside=False), event(CONV, 0)],
        ],
    ],
)
def test_events_of_another_plan_are_refused(runs: list[list[Event]]) -> None:
    named = operators("CONV_2D", "RELU", "SOFTMAX", "CONV_2D")
    with pytest.raises(RuntimeFailure) as failure:
        profile.by_events(PLAN, named, runs)
    assert failure.value.code == "PROFILE_UNAVAILABLE"


def test_a_step_that_ran_unseen_is_no_row() -> None:
    with pytest.raises(RuntimeFailure, match="does not show the time of its node 2"):
        profile.by_steps([ExecutionStep(2, "", (0,), 0)], operators("RELU"), {2: []}, {})


class TestReal:
    """Tests on the installed package."""

    @pytest.fixture(autouse=True)
    def _present(self) -> None:
        pytest.importorskip("ai_edge_litert.interpreter")

    @pytest.fixture
    def job(self, chain: Callable[..., Path], tmp_path: Path) -> Job:
        model = chain(tmp_path / "m.tflite", ["ABS", "RELU", "TANH", "NEG", "LOGISTIC"], side=64)
        return Job(model, {"delegate": "xnnpack"}, "fp32", tmp_path)

    def test_kernels_of_xnnpack_have_rows_of_their_own(self, job: Job) -> None:
        layers = TfliteRuntime(1).profile(job, 4)
        assert {layer.device for layer in layers} == {"XNNPACK"}
        covered = [name for layer in layers for name in layer.name.split("+")]
        assert sorted(covered) == ["t1", "t2", "t3", "t4", "t5"]
        assert len(layers) >= 4
        assert sum(layer.latency_ms for layer in layers) > 0

    def test_without_its_profiler_a_partition_is_one_row(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tflite, "OLDEST", (99, 0))
        (layer,) = TfliteRuntime(1).profile(job, 4)
        assert layer.name == "t1+t2+t3+t4+t5"
        assert layer.op == "Abs+Relu+Tanh+Neg+Logistic"
        assert layer.device == "XNNPACK"
        assert layer.latency_ms > 0

    def test_the_compiled_model_computes_what_the_interpreter_does(self, job: Job) -> None:
        from ai_edge_litert import interpreter

        session = open_interpreter(interpreter, job.model_path, 1)
        session.run()
        folder = Path(interpreter.__file__).parent
        model = CompiledModel(folder, job.model_path, LitertDevice(), profiling=True)
        try:
            model.fill(0, session.interpreter.get_tensor(0).tobytes())
            model.run()
            assert model.read(0) == session.interpreter.get_tensor(5).tobytes()
            assert all(event.inside for event in model.profile())
            with pytest.raises(RuntimeFailure, match="input 0 takes"):
                model.fill(0, b"too short")
        finally:
            model.close()
            model.close()

    def test_a_model_that_cannot_be_compiled_leaves_nothing(self, tmp_path: Path) -> None:
        from ai_edge_litert import interpreter

        broken = tmp_path / "broken.tflite"
        broken.write_bytes(b"no model")
        folder = Path(interpreter.__file__).parent
        with pytest.raises(RuntimeFailure, match="LiteRtCreateModelFromFile ended"):
            CompiledModel(folder, broken, LitertDevice(), profiling=False)
        with pytest.raises(RuntimeFailure, match=r"libLiteRt\.so"):
            CompiledModel(tmp_path, broken, LitertDevice(), profiling=False)

    def test_clocks_are_taken_off_again(self, job: Job) -> None:
        from ai_edge_litert.interpreter import Interpreter

        scout = Scout()
        interpreter = Interpreter(str(job.model_path), experimental_delegates=[scout])
        interpreter.allocate_tensors()
        with scout.clocks() as times_ms:
            for _ in range(3):
                interpreter.invoke()
        assert [len(spent) for spent in times_ms.values()] == [3]
        interpreter.invoke()
        assert [len(spent) for spent in times_ms.values()] == [3]

    def test_a_scout_that_was_given_to_nobody_says_so(self) -> None:
        with pytest.raises(RuntimeFailure, match="prepared no delegate"):
            Scout().steps()
