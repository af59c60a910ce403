"""ncnn models on the CPU and on Vulkan GPUs.

A model is a zip file with the parts `model.param` and `model.bin`, both uncompressed. ncnn itself
does not need the shapes of inputs. This runtime reads them from the Input layers of the param,
where the builder of the controller and ncnn's converters write them (0=w, 1=h, 11=d, 2=c).
"""

from __future__ import annotations

import gc
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.gpu_options import read_options
from latfarm_agent.runtimes.ncnn import vulkan
from latfarm_agent.runtimes.probe import matrix_probe
from latfarm_agent.runtimes.trace import middle_mean

_PROFILE_WARMUP = 3
"""Runs before a profile whose times are not counted."""
_CONVERTED, _AS_IT_IS = 0, 1  # layouts of results: as inputs have it, or as the layer wrote them
_PARTS = ("model.param", "model.bin")
_MAGIC = "7767517"  # the first line of each param file
_OPTIONS = (
    "use_vulkan_compute",
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_storage",
)


class NcnnRuntime:
    """ncnn in float32, and on GPUs in half precision too. A run extracts all outputs.

    Args:
        threads: threads of the CPU.
        options: "vulkan" (default true): whether to look for GPUs. "software_devices" (default
            false): whether to offer drivers that emulate a GPU on the CPU, for example lavapipe.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if an option is unknown or has a wrong type.
    """

    def __init__(self, threads: int = 1, **options: Any) -> None:
        self._threads = threads
        self._options = read_options("ncnn", options, {"vulkan": True, "software_devices": False})
        self._net: Any = None
        self._feeds: list[tuple[str, Any]] = []
        self._outputs: list[str] = []

    def describe(self) -> Description:
        """Offer fp32 on the CPU and on each GPU, and fp16 on the GPUs that can store it."""
        module = _import()
        version = str(module.__version__)
        settings = {"device": "cpu", "precision": "fp32", "threads": str(self._threads)}
        short = version.split(".")[-1] if version.startswith("1.0.") else version
        name = f"ncnn{short}-fp32-{self._threads}t"
        offered = [PlatformSpec(name, "ncnn", "fp32", settings)]
        if self._options["vulkan"]:
            offered += self._on_gpus(module, short)
        return Description(version, tuple(offered))

    def prepare(self, job: Job) -> Prepared:
        """Unpack the file, load it into a fresh net, and make noise for its inputs."""
        self._net = None
        self._feeds = []
        gc.collect()
        begun = time.perf_counter()
        self._net, self._feeds = self._load(job)
        spent_ms = (time.perf_counter() - begun) * 1e3
        self._outputs = [str(name) for name in self._net.output_names()]
        if vulkan.index_of(job.settings) is not None:
            # ncnn compiles the shaders when it loads a net; loading itself takes little time.
            return Prepared(compile_ms=spent_ms, cpu_clock="none", probe=matrix_probe())
        clock = "thread" if self._threads == 1 else "process"
        return Prepared(cpu_clock=clock, probe=matrix_probe())

    def run(self) -> float | None:
        """Run one inference; the results of a GPU are copied to the host."""
        if self._net is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        with self._net.create_extractor() as extractor:
            self._feed(extractor, self._feeds)
            for name in self._outputs:
                _extract(extractor, name)
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the time of each layer, by extracting the results of one layer after the other.

        An extractor that has the inputs of a layer computes only this layer. On the CPU nothing
        else is done: results stay in the layout that the next layer reads and in the memory that
        they were written to, and layers that work in place do so, as in a run. So the times add up
        to that of a run. Layers that only pass a tensor on (Input, Split) have no row.

        On a GPU, each time includes waiting for the GPU and copying the result to the host, so
        that the sum exceeds the time of a run. `device` is the GPU, or "cpu" for a layer that has
        no Vulkan implementation.
        """
        net, feeds = self._load(job)
        on_cpu = vulkan.index_of(job.settings) is None
        layout = _AS_IT_IS if on_cpu else _CONVERTED
        # ncnn copies what it gives out of its own pool of memory, and only of that.
        pool = _pool(_import())
        layers = [layer for layer in net.layers() if layer.type not in ("Input", "Split")]
        blobs = net.blobs()
        tops = [[str(blobs[index].name) for index in layer.tops] for layer in layers]
        times: list[list[float]] = [[] for _ in layers]
        for turn in range(_PROFILE_WARMUP + runs):
            with net.create_extractor() as extractor:
                # In light mode a result is dropped as soon as its reader has run.
                extractor.set_light_mode(on_cpu)
                if on_cpu:
                    extractor.set_blob_allocator(pool)
                self._feed(extractor, feeds)
                for index, names in enumerate(tops):
                    began = time.perf_counter()
                    for name in names:
                        _extract(extractor, name, layout)
                    spent_ms = (time.perf_counter() - began) * 1e3
                    if turn >= _PROFILE_WARMUP:
                        times[index].append(spent_ms)
        return [
            LayerTime(
                str(layer.name) or str(layer.type),
                str(layer.type),
                middle_mean(spent),
                vulkan.place(layer, job.settings),
            )
            for layer, spent in zip(layers, times)
        ]

    def _on_gpus(self, module: Any, short: str) -> list[PlatformSpec]:
        with tempfile.TemporaryDirectory() as folder:
            found = vulkan.devices(module, Path(folder))
        offered: list[PlatformSpec] = []
        for gpu, halves in found:
            if self._options["software_devices"] or not gpu.software:
                offered += vulkan.platforms(short, gpu, halves, self._threads)
        if found and not offered:
            module.destroy_gpu_instance()  # ends the threads of an instance that nobody uses
        return offered

    def _load(self, job: Job) -> tuple[Any, list[tuple[str, Any]]]:
        module = _import()
        folder = job.scratch_dir / "ncnn"
        folder.mkdir(exist_ok=True)
        try:
            _unpack(job.model_path, folder)
            param = (folder / _PARTS[0]).read_text("ascii", "strict")
            shapes = _input_shapes(param)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise RuntimeFailure("MODEL_INVALID", f"not a packed ncnn model: {error}") from error
        net = module.Net()
        for name in _OPTIONS:
            setattr(net.opt, name, False)
        net.opt.num_threads = self._threads
        vulkan.use(module, net, job.settings)
        try:
            if net.load_param(str(folder / _PARTS[0])):
                raise _unread(module, param)
            if net.load_model(str(folder / _PARTS[1])):
                raise RuntimeFailure("MODEL_INVALID", "ncnn does not read model.bin")
        finally:
            for part in _PARTS:
                (folder / part).unlink()
        names = [str(name) for name in net.input_names()]
        missing = [name for name in names if name not in shapes]
        if missing:
            raise RuntimeFailure("MODEL_INVALID", f"input {missing[0]!r} has no shape in the file")
        return net, [(name, _noise(module, shapes[name])) for name in names]

    def _feed(self, extractor: Any, feeds: Sequence[tuple[str, Any]]) -> None:
        for name, blob in feeds:
            if extractor.input(name, blob):
                raise RuntimeFailure("MODEL_FAILED", f"ncnn does not take input {name!r}")


def _import() -> Any:
    try:
        import ncnn
    except ImportError as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"ncnn cannot be imported ({error}); "
            "install it with: pip install 'latfarm-agent[ncnn]'",
        ) from error
    return ncnn


def _pool(module: Any) -> Any:
    """Return a pool of memory that gives out and takes back like the one that a net has itself."""
    pool = module.PoolAllocator()
    pool.set_size_compare_ratio(0.0)
    return pool


def _extract(extractor: Any, name: str, layout: int = _CONVERTED) -> None:
    code, _ = extractor.extract(name, layout)
    if code == -100:  # ncnn's code for a blob that it could not allocate
        raise RuntimeFailure("OUT_OF_MEMORY", f"ncnn could not allocate {name!r}")
    if code:
        raise RuntimeFailure("MODEL_FAILED", f"ncnn ended with code {code} at {name!r}")


def _unpack(path: Path, folder: Path) -> None:
    """Copy the two parts out of the zip file. Uncompressed parts cannot exceed the file's size.

    Raises:
        KeyError: a part is missing.
        ValueError: a part is compressed.
    """
    with zipfile.ZipFile(path) as archive:
        for part in _PARTS:
            entry = archive.getinfo(part)
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{part} is compressed")
            with archive.open(entry) as source, (folder / part).open("wb") as target:
                while True:
                    piece = source.read(1 << 20)
                    if not piece:
                        break
                    target.write(piece)


def _unread(module: Any, param: str) -> RuntimeFailure:
    """Return why ncnn cannot read a param: it lacks a layer, or the text is broken."""
    kinds = {words[0] for words in map(str.split, param.splitlines()[2:]) if len(words) > 3}
    lacking = sorted(kind for kind in kinds if module.layer_to_index(kind) < 0)
    if lacking:
        return RuntimeFailure("MODEL_UNSUPPORTED", f"ncnn has no layer {', '.join(lacking)}")
    return RuntimeFailure("MODEL_INVALID", "ncnn does not read model.param")


def _input_shapes(param: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the blobs of the Input layers, with the outermost size first.

    Raises:
        ValueError: the text is not a param.
    """
    lines = param.splitlines()
    if not lines or lines[0].strip() != _MAGIC:
        raise ValueError(f"model.param does not begin with ncnn's number {_MAGIC}")
    shapes: dict[str, tuple[int, ...]] = {}
    for line in lines[2:]:
        words = line.split()
        if len(words) < 5 or words[0] != "Input":
            continue
        given = dict(word.split("=", 1) for word in words[5:] if "=" in word)
        sizes = [int(given[key]) for key in ("2", "11", "1", "0") if key in given]
        sizes = [size for size in sizes if size > 0]
        if sizes:
            shapes[words[4]] = tuple(sizes)
    return shapes


def _noise(module: Any, shape: Sequence[int]) -> Any:
    """Return normally distributed values, the same each time."""
    import numpy as np

    draw = np.random.default_rng(0)
    data = draw.standard_normal(tuple(shape)).astype(np.float32)
    return module.Mat(data).clone()  # the clone owns its memory, while the first Mat borrows `data`
