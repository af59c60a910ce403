"""MNN and ncnn on GPUs: which platforms they offer, and where they compute what."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from latfarm_agent.runtimes import gpus
from latfarm_agent.runtimes.base import Job, PlatformSpec, RuntimeFailure
from latfarm_agent.runtimes.gpu_options import Gpu, is_software, read_options
from latfarm_agent.runtimes.mnn import gpu as mnn_gpu
from latfarm_agent.runtimes.mnn.runtime import MnnRuntime
from latfarm_agent.runtimes.ncnn import vulkan as ncnn_vulkan
from latfarm_agent.runtimes.ncnn.runtime import NcnnRuntime

ADRENO = Gpu(0, "Adreno (TM) 640", "0x1", software=False)
LAVAPIPE = Gpu(0, "llvmpipe (LLVM 15.0.6, 256 bits)", "0x1", software=True)


# Options.


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (NcnnRuntime, {"vulcan": True}, "no option 'vulcan'.*vulkan, software_devices"),
        (NcnnRuntime, {"vulkan": 1}, "'vulkan' is 1; set it to true or false"),
        (MnnRuntime, {"tuning": "best"}, "'tuning' is 'best'; set it to \"wide\" or \"none\""),
        (MnnRuntime, {"memory": 3}, '\'memory\' is 3; set it to "buffer" or "image"'),
        (MnnRuntime, {"cache_dir": 3}, "'cache_dir' is 3; set it to a text"),
    ],
)
def test_wrong_options_name_themselves_and_the_remedy(
    make: Callable[..., object], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RuntimeFailure, match=says) as raised:
        make(threads=1, **options)
    assert raised.value.code == "RUNTIME_MISSING"


def test_defaults() -> None:
    wanted = {"a": True, "b": ("x", "y"), "c": "text"}
    assert read_options("any", {"b": "y"}, wanted) == {"a": True, "b": "y", "c": "text"}


# GPUs that the drivers report.


@pytest.mark.parametrize(
    ("names", "software"),
    [
        (("llvmpipe (LLVM 15.0.6, 256 bits)",), True),
        (("SwiftShader Device (LLVM 10.0.0)",), True),
        (("Portable Computing Language", "pthread-skylake"), True),
        (("Adreno (TM) 640",), False),
        (("NVIDIA CUDA", "Orin"), False),
    ],
)
def test_software_devices_are_known_by_name(names: tuple[str, ...], software: bool) -> None:
    assert is_software(*names) is software


def test_systems_without_drivers_have_no_gpus(tmp_path: Path) -> None:
    code = "from latfarm_agent.runtimes import gpus; print(gpus.opencl_gpus(), gpus.vulkan_gpus())"
    # With these variables, neither loader finds a driver.
    environment = dict(
        os.environ,
        VK_ICD_FILENAMES=str(tmp_path / "none"),
        VK_DRIVER_FILES=str(tmp_path / "none"),
        OCL_ICD_VENDORS=str(tmp_path),
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "[] []"


def test_systems_without_loaders_have_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert gpus.opencl_gpus() == gpus.vulkan_gpus() == []


def test_what_vulkan_drivers_there_are_have_names() -> None:
    found = gpus.vulkan_gpus()
    if not found:
        pytest.skip("no Vulkan driver is installed")
    assert [gpu.index for gpu in found] == list(range(len(found)))
    assert all(gpu.name and gpu.driver.startswith("0x") for gpu in found)


def test_what_opencl_gpus_there_are_have_names() -> None:
    found = gpus.opencl_gpus()
    if not found:
        pytest.skip("no OpenCL driver offers a GPU here")
    assert all(gpu.name and gpu.driver for gpu in found)


# ncnn.


class NcnnDouble:
    """The part of ncnn that describes GPUs."""

    class Info:
        def __init__(self, name: str, kind: int) -> None:
            self.device_name: Callable[[], str] = lambda: name
            self.type: Callable[[], int] = lambda: kind
            self.driver_version: Callable[[], int] = lambda: 0x801000

    def __init__(self, *found: tuple[str, int], says: str) -> None:
        self._infos = [self.Info(*each) for each in found]
        self._says = says

    def get_gpu_count(self) -> int:
        os.write(2, self._says.encode())
        return len(self._infos)

    def get_gpu_info(self, index: int) -> Info:
        return self._infos[index]


def test_ncnn_devices(tmp_path: Path) -> None:
    module = NcnnDouble(
        ("Adreno (TM) 640", 1),
        ("Mali-T860", 1),
        ("llvmpipe", 3),
        says="[0 Adreno (TM) 640]  queueC=0[3]\n"
        "[0 Adreno (TM) 640]  fp16-p/s/u/a=1/1/1/0  int8-p/s/u/a=1/1/1/1\n"
        "[1 Mali-T860]  fp16-p/s/a=1/0/0  int8-p/s/a=0/0/0\n",
    )
    found = ncnn_vulkan.devices(module, tmp_path)
    assert found == [
        (Gpu(0, "Adreno (TM) 640", "0x801000", software=False), (True, True, False)),
        (Gpu(1, "Mali-T860", "0x801000", software=False), (True, False, False)),
        (Gpu(2, "llvmpipe", "0x801000", software=True), (False, False, False)),
    ]
    made = [spec for gpu, halves in found for spec in ncnn_vulkan.platforms("1", gpu, halves, 2)]
    assert [(spec.name, spec.dtype, spec.settings["precision"]) for spec in made] == [
        ("ncnn1-vulkan-fp32", "fp32", "fp32"),
        ("ncnn1-vulkan-fp16", "fp16", "fp16 packed+storage"),
        ("ncnn1-vulkan1-fp32", "fp32", "fp32"),
        ("ncnn1-vulkan2-fp32", "fp32", "fp32"),
    ]
    assert [spec.settings.get("software_device") for spec in made] == [None, None, None, "yes"]
    assert not list(tmp_path.iterdir())
    # A second call in the same process prints nothing, and still finds the same.
    again = NcnnDouble(("Adreno (TM) 640", 1), says="")
    assert ncnn_vulkan.devices(again, tmp_path) == found[:1]


def test_an_ncnn_without_vulkan_has_no_devices(tmp_path: Path) -> None:
    assert ncnn_vulkan.devices(object(), tmp_path) == []


def test_a_device_that_is_gone() -> None:
    module = NcnnDouble(says="")
    with pytest.raises(RuntimeFailure, match="Adreno is gone"):
        ncnn_vulkan.use(module, None, {"device": "vulkan:0", "gpu": "Adreno"})


@pytest.fixture
def ncnn_models() -> ModuleType:
    """The module that writes ncnn models by hand."""
    pytest.importorskip("ncnn")
    return _module("test_conformance")


def test_ncnn_offers_software_devices_only_when_asked() -> None:
    pytest.importorskip("ncnn")
    shown = NcnnRuntime(software_devices=True).describe().platforms
    offered = NcnnRuntime().describe().platforms
    assert [spec.name for spec in NcnnRuntime(vulkan=False).describe().platforms] == [shown[0].name]
    assert [spec for spec in shown if "software_device" not in spec.settings] == list(offered)
    if len(shown) == 1:
        pytest.skip("no Vulkan driver is installed")
    assert "-vulkan-" in shown[1].name
    assert all(spec.settings["gpu"] and spec.settings["driver"] for spec in shown[1:])


@pytest.mark.parametrize(("kind", "lacks"), [("conv", set()), ("mixed", {"MatMul"})])
def test_ncnn_computes_the_same_on_vulkan_as_on_the_cpu(
    ncnn_models: ModuleType, tmp_path: Path, kind: str, lacks: set[str]
) -> None:
    runtime = NcnnRuntime(software_devices=True)
    specs = runtime.describe().platforms
    if len(specs) == 1:
        pytest.skip("no Vulkan driver is installed")
    path = ncnn_models.write_ncnn(tmp_path / "model", kind)
    found: dict[str, Any] = {}
    for spec in specs:
        job = Job(path, spec.settings, spec.dtype, tmp_path)
        prepared = runtime.prepare(job)
        runtime.run()
        on_gpu = "vulkan" in spec.name
        assert prepared.cpu_clock == ("none" if on_gpu else "thread")
        assert (prepared.compile_ms > 0) == on_gpu
        found[spec.dtype if on_gpu else "cpu"] = _ncnn_output(path, spec, tmp_path)
        places = {layer.op: layer.device for layer in runtime.profile(job, 1)}
        if on_gpu:
            assert {op for op, place in places.items() if place == "cpu"} == lacks
            assert set(places.values()) - {"cpu"} == {spec.settings["gpu"]}
    largest = abs(found["cpu"]).max()
    assert abs(found["fp32"] - found["cpu"]).max() <= 1e-5 * largest
    if "fp16" in found:
        apart = abs(found["fp16"] - found["cpu"]).max()
        assert 1e-5 * largest < apart <= 1e-2 * largest  # it really was half precision


def _ncnn_output(path: Path, spec: PlatformSpec, folder: Path) -> Any:
    """Return what ncnn computes on a platform, always from the same noise."""
    import ncnn
    import numpy as np

    with zipfile.ZipFile(path) as packed:
        packed.extractall(folder)
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    ncnn_vulkan.use(ncnn, net, spec.settings)
    assert net.load_param(str(folder / "model.param")) == 0
    assert net.load_model(str(folder / "model.bin")) == 0
    shape = (8, 8) if net.layers()[1].type == "ReLU" else (8, 16, 16)
    noise = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with net.create_extractor() as extractor:
        extractor.input("in0", ncnn.Mat(noise).clone())
        return np.array(extractor.extract("out0")[1])


# MNN.
@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A double of MNN that supports GPUs, and a GPU for each of its back ends."""
    made = _module("mnn_double")
    monkeypatch.setitem(sys.modules, "MNN", made)
    monkeypatch.setattr(mnn_gpu, "opencl_gpus", lambda: [ADRENO])
    monkeypatch.setattr(mnn_gpu, "vulkan_gpus", lambda: [ADRENO])
    return made


def _module(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"of_test_gpus_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _named(runtime: MnnRuntime) -> dict[str, PlatformSpec]:
    return {spec.name: spec for spec in runtime.describe().platforms}


def test_the_mnn_of_the_package_index_has_no_gpu_back_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("MNN")
    monkeypatch.setattr(mnn_gpu, "opencl_gpus", lambda: [ADRENO])
    monkeypatch.setattr(mnn_gpu, "vulkan_gpus", lambda: [ADRENO])
    (only,) = MnnRuntime().describe().platforms
    assert only.settings["backend"] == "CPU"


def test_mnn_platforms(double: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _named(MnnRuntime(threads=2, tuning="fast", memory="image"))
    assert list(found) == [
        "mnn3.6-fp32-2t",
        "mnn3.6-opencl-fp32",
        "mnn3.6-opencl-fp16",
        "mnn3.6-vulkan-fp32",
        "mnn3.6-vulkan-fp16",
    ]
    assert dict(found["mnn3.6-opencl-fp16"].settings) == {
        "backend": "OPENCL",
        "gpu": "Adreno (TM) 640",
        "driver": "0x1",
        "tuning": "fast",
        "memory": "image",
        "cpu_threads": "2",
        "outputs": "copied to the host",
        "precision": "low",
    }
    assert found["mnn3.6-vulkan-fp32"].settings["tuning"] == "none"  # Vulkan knows no "fast"
    assert len(_named(MnnRuntime(opencl=False))) == 3
    monkeypatch.setattr(mnn_gpu, "vulkan_gpus", lambda: [LAVAPIPE])
    assert len(_named(MnnRuntime(opencl=False))) == 1
    software = _named(MnnRuntime(opencl=False, software_devices=True))
    assert software["mnn3.6-vulkan-fp16"].settings["software_device"] == "yes"
    monkeypatch.setattr(mnn_gpu, "opencl_gpus", list)  # built with OpenCL, but no driver
    assert len(_named(MnnRuntime(vulkan=False))) == 1


def test_an_mnn_session_on_a_gpu(double: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "model.mnn"
    path.write_bytes(b"an MNN model")
    runtime = MnnRuntime(cache_dir=str(tmp_path / "cache"))
    found = _named(runtime)
    for name, bits in (("mnn3.6-opencl-fp32", 4 | 64), ("mnn3.6-vulkan-fp16", 4)):
        spec = found[name]
        job = Job(path, spec.settings, spec.dtype, tmp_path)
        prepared = runtime.prepare(job)
        assert prepared.cpu_clock == "none"
        assert prepared.compile_ms > 0
        assert double.sessions[-1]["numThread"] == bits
        assert double.sessions[-1]["precision"] == ("high" if "fp32" in name else "low")
        for _ in range(3):
            runtime.run()
        layers = runtime.profile(job, 2)
        assert [(layer.name, layer.device) for layer in layers] == [
            ("conv", "Adreno (TM) 640"),
            ("topk", "CPU"),
        ]
    cpu = found["mnn3.6-fp32-1t"]
    prepared = runtime.prepare(Job(path, cpu.settings, "fp32", tmp_path))
    assert (prepared.cpu_clock, prepared.compile_ms) == ("thread", 0.0)
    assert double.sessions[-1]["numThread"] == 1


def test_what_mnn_tuned_is_kept_by_model_and_platform(double: ModuleType, tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "other"]
    for path in paths:
        path.write_bytes(b"a model: " + path.name.encode())
    runtime = MnnRuntime(cache_dir=str(tmp_path / "cache"))
    specs = [_named(runtime)[f"mnn3.6-{part}-fp32"] for part in ("opencl", "vulkan")]
    jobs = [Job(p, s.settings, s.dtype, tmp_path) for p in paths for s in specs]
    for job in jobs:
        runtime.prepare(job)
    assert [known for _, _, known in double.caches] == [b""] * 4
    kept = sorted((tmp_path / "cache").iterdir())
    assert len(kept) == 4
    again = MnnRuntime(cache_dir=str(tmp_path / "cache"))
    for job in jobs:
        again.prepare(job)
    expected = [b"tuned for OPENCL", b"tuned for VULKAN"] * 2
    assert [known for _, _, known in double.caches[4:]] == expected
    assert sorted((tmp_path / "cache").iterdir()) == kept
    # MNN never writes into the kept file itself.
    assert {Path(name).parent for _, name, _ in double.caches} == {tmp_path}
    MnnRuntime().prepare(jobs[0])
    assert len(double.caches) == 8


def test_a_gpu_that_went_away_is_no_cpu(double: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "model.mnn"
    path.write_bytes(b"an MNN model")
    runtime = MnnRuntime()
    spec = _named(runtime)["mnn3.6-opencl-fp32"]
    double.present.discard("OPENCL")
    with pytest.raises(RuntimeFailure, match="finds no OPENCL device any more"):
        runtime.prepare(Job(path, spec.settings, spec.dtype, tmp_path))
