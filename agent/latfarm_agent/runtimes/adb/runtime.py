"""Measuring models on a phone with the vendors' benchmark binaries, over adb.

Each call of a binary is a fresh process that loads the model, warms up and runs it about ten times.
The binaries only print statistics. So one sample is the median of the runs of a call, or their
average if no median is printed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Mapping, Sequence

from latfarm_agent.phones.device import AdbDevice, AdbError, file_sha256
from latfarm_agent.runtimes.adb.call import Caller
from latfarm_agent.runtimes.adb.mnn import MnnBenchmark
from latfarm_agent.runtimes.adb.ncnn import NcnnBenchmark
from latfarm_agent.runtimes.adb.options import Benchmark, PhoneOptions, Variant, read_options
from latfarm_agent.runtimes.adb.report import BinaryRun, Loaded, Report, Tool
from latfarm_agent.runtimes.adb.tflite import TfliteBenchmark
from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)

_TOOLS: Mapping[str, Tool] = {
    "tflite-benchmark": TfliteBenchmark(),
    "mnn-bench": MnnBenchmark(),
    "ncnn-bench": NcnnBenchmark(),
}
_ON_CPU = ("cpu", "builtin")
"""Delegates that compute on the CPU, so that the number of threads matters."""


class AdbRuntime:
    """Runs the benchmark binaries of the configuration on one phone.

    Args:
        threads: threads of the platforms on the phone's CPU.
        serial: serial number of the phone as `adb devices` prints it, from the option `--adb`.
        adb: path of the adb client; empty: the one in the PATH.
        rules: when the phone may be measured; the agent applies these rules, not this runtime.
        options: the options that `adb.options` describes.
    """

    def __init__(
        self,
        threads: int = 1,
        serial: str = "",
        adb: str = "",
        rules: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        del rules
        self._threads = threads
        if not serial:
            raise RuntimeFailure("RUNTIME_MISSING", "no phone: start the agent with --adb SERIAL")
        self._options: PhoneOptions = read_options(options)
        try:
            device = AdbDevice(serial, adb)
        except AdbError as error:
            raise RuntimeFailure("RUNTIME_MISSING", str(error)) from error
        self._caller = Caller(device, self._options.core_mask)
        self._session: _Session | None = None

    def describe(self) -> Description:
        """Offer a platform for each variant of each binary.

        This checks the files of the binaries and does not need the phone.
        """
        platforms: dict[str, PlatformSpec] = {}
        lacking: list[str] = []
        versions: set[str] = set()
        for benchmark in self._options.benchmarks:
            try:
                _check(benchmark)
            except RuntimeFailure as failure:
                lacking.append(failure.message)
                continue
            versions.add(f"{benchmark.kind} {benchmark.shown_version}")
            for variant in benchmark.variants:
                spec = self._platform(benchmark, variant, self._threads)
                if spec.name in platforms:
                    raise RuntimeFailure(
                        "RUNTIME_MISSING",
                        f"two variants are called {spec.name}: give benchmarks different versions",
                    )
                platforms[spec.name] = spec
        if not platforms:
            raise RuntimeFailure("RUNTIME_MISSING", "; ".join(lacking))
        return Description(", ".join(sorted(versions)), tuple(platforms.values()), tuple(lacking))

    def prepare(self, job: Job) -> Prepared:
        """Copy binary and model to the phone if needed, and check with a call that they run."""
        self._session = None
        session = self._open(job)
        first = session.inquire()
        self._session = session
        conditions = {
            **first.conditions,
            "sample": f"{session.statistic} of {session.runs} runs of one process",
            "init_ms": f"{first.init_ms:g}",
        }
        return Prepared(
            compile_ms=0.0 if session.variant.delegate in _ON_CPU else first.init_ms,
            cpu_clock="none",
            flush=session.chill,
            settles=False,
            whole_calls=True,
            conditions=conditions,
        )

    def run(self) -> float | None:
        """Make one call and return its sample in milliseconds."""
        if self._session is None:
            raise RuntimeFailure("MODEL_FAILED", "no model was prepared")
        return self._session.sample()

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return what the binary's own profiler prints about one call."""
        return self._open(job).profile(runs)

    def _open(self, job: Job) -> _Session:
        benchmark, variant = self._chosen(job)
        tool = _TOOLS[benchmark.kind]
        tool.inspect(job.model_path)
        self._caller.ready()
        if job.session == 0:
            self._caller.tidy(self._options.keep_models)
        folder = job.scratch_dir / "parts"
        folder.mkdir(exist_ok=True)
        parts = tool.parts(job.model_path, folder)
        files = self._caller.send(parts)
        threads = int(job.settings["threads"])
        loaded = Loaded(job.model_path, files)
        return _Session(self._caller, benchmark, variant, loaded, threads, self._options)

    def _chosen(self, job: Job) -> tuple[Benchmark, Variant]:
        """Return the binary and the variant of the job's platform."""
        wanted = (job.dtype, dict(job.settings))
        for benchmark in self._options.benchmarks:
            for variant in benchmark.variants:
                spec = self._platform(benchmark, variant, int(job.settings.get("threads", "1")))
                if (spec.dtype, dict(spec.settings)) == wanted:
                    return benchmark, variant
        raise RuntimeFailure("RUNTIME_MISSING", "the configuration no longer has this platform")

    def _platform(self, benchmark: Benchmark, variant: Variant, threads: int) -> PlatformSpec:
        """Describe the platform of a variant; the settings hold all that a latency depends on."""
        options = self._options
        on_cpu = variant.delegate in _ON_CPU
        tool = _TOOLS[benchmark.kind]
        threads = threads if on_cpu else 1
        settings = {
            "kind": benchmark.kind,
            "version": benchmark.shown_version,
            "binary_sha256": benchmark.binary.sha256,
            "delegate": variant.delegate,
            "threads": str(threads),
            "runs": str(options.runs),
            "warmup_runs": str(options.warmup_runs),
            "warmup_s": f"{options.warmup_s:g}",
            "call_s": f"{options.call_s:g}",
            "core_mask": options.core_mask or "any",
        }
        if benchmark.libraries:
            hashes = sorted(library.sha256 for library in benchmark.libraries)
            settings["libraries_sha256"] = " ".join(hashes)
        if variant.arguments:
            settings["arguments"] = " ".join(variant.arguments)
        words = [tool.label + benchmark.shown_version]
        if variant.delegate != "cpu":
            words.append(variant.delegate)
        words.append(variant.dtype)
        if on_cpu:
            words.append(f"{threads}t")
        return PlatformSpec("-".join(words), tool.model_format, variant.dtype, settings)


class _Session:
    """A session of a model that is on the phone with its binary."""

    def __init__(
        self,
        caller: Caller,
        benchmark: Benchmark,
        variant: Variant,
        loaded: Loaded,
        threads: int,
        options: PhoneOptions,
    ) -> None:
        self.variant = variant
        self.statistic = ""
        self._caller = caller
        self._benchmark = benchmark
        self._tool = _TOOLS[benchmark.kind]
        self._loaded = loaded
        self._binary = caller.install(benchmark.binary)
        self._libraries = [caller.install(library) for library in benchmark.libraries]
        self._call = BinaryRun(
            threads=threads,
            runs=options.runs,
            warmup_runs=options.warmup_runs,
            warmup_s=options.warmup_s,
            call_s=options.call_s,
        )
        self._cold = False

    @property
    def runs(self) -> int:
        """Number of runs that a call is asked for."""
        return self._call.runs

    def inquire(self) -> Report:
        """Make a short call that shows whether the model runs, and how long a run takes."""
        asked = replace(self._call, runs=1, warmup_runs=1, warmup_s=0.0, inquire=True)
        report = self._sample(asked)
        self.statistic = report.statistic
        most = max(1, math.floor(self._call.call_s * 1e3 / report.latency_ms))
        self._call = replace(
            self._call, runs=min(self._call.runs, most), expected_ms=report.latency_ms
        )
        return report

    def chill(self) -> None:
        """Make the next call a cold one, which times the first run of its process."""
        asked = replace(self._call, cold=True)
        self._tool.command(self._loaded, self.variant, asked)  # raises if the binary cannot do it
        self._cold = True

    def sample(self) -> float:
        """Make one call and return its sample in milliseconds."""
        asked, self._cold = replace(self._call, cold=self._cold), False
        return self._sample(asked).latency_ms

    def profile(self, runs: int) -> Sequence[LayerTime]:
        """Return the kernels from the binary's own profiler."""
        asked = replace(self._call, runs=max(1, runs))
        arguments = self._tool.profile_command(self._loaded, self.variant, asked)
        binary = self._binary
        if self._benchmark.kind == "mnn-bench":
            if self._benchmark.profiler is None:
                raise RuntimeFailure(
                    "PROFILE_UNAVAILABLE",
                    "benchmark.out has no profiler: configure MNNV2Basic.out as `profiler`",
                )
            binary = self._caller.install(self._benchmark.profiler)
        text = self._ask(binary, arguments)
        return self._tool.layers(text, self.variant, self._loaded.model)

    def _sample(self, asked: BinaryRun) -> Report:
        arguments = self._tool.command(self._loaded, self.variant, asked)
        return self._tool.read(self._ask(self._binary, arguments), self.variant, asked)

    def _ask(self, binary: str, arguments: Sequence[str]) -> str:
        answer = self._caller.call(binary, arguments, self._libraries)
        if answer.code:
            raise self._tool.failure(answer.text, answer.code)
        return answer.text


def _check(benchmark: Benchmark) -> None:
    """Check that the files of a binary exist and have the configured checksums.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, naming the file that is wrong.
    """
    extra = [benchmark.profiler] if benchmark.profiler else []
    for binary in (benchmark.binary, *benchmark.libraries, *extra):
        try:
            digest = file_sha256(binary.path)
        except AdbError as error:
            raise RuntimeFailure(
                "RUNTIME_MISSING", f"{error}; install the binary, or correct the configuration"
            ) from error
        if digest != binary.sha256:
            raise RuntimeFailure(
                "RUNTIME_MISSING",
                f"{binary.path}: its sha256 is {digest}, configured is {binary.sha256}; "
                "install the right file, or correct the configuration",
            )
