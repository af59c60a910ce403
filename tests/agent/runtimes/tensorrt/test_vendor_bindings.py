"""Compares TensorRT's double with the vendor's published bindings of several versions.

The tests are skipped if the bindings are missing. To get them (1 MB each; neither a GPU nor
TensorRT is needed):

    pip download --no-deps --only-binary=:all: -d WHEELS tensorrt-bindings==8.6.1
    pip download --no-deps --only-binary=:all: -d WHEELS tensorrt-cu12-bindings==10.3.0
    LATFARM_TENSORRT_WHEELS=WHEELS pytest tests/agent/runtimes/tensorrt/test_vendor_bindings.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

DOUBLE = Path(__file__).parent / "double"
WHEELS = os.environ.get("LATFARM_TENSORRT_WHEELS", "")
# Version of the wheel and of the double. There is no wheel of 8.4, but 8.6 still has all of it.
VERSIONS = (
    ("8.6", "8.6"),
    ("8.6", "8.4"),
    ("10.3", "10.3"),
    ("10.16", "10.3"),
    ("11.0", "11.4"),
    ("11.4", "11.4"),
)
_BEHIND = re.compile(r"^(create(Infer|NvOnnx)|get.*PluginRegistry|getNv|initLibNv|_ZN\d+nv)")


def wheel_of(version: str) -> Path:
    """Return the wheel of a version for this interpreter; skip the test if it is missing."""
    tag = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    for path in sorted(Path(WHEELS).glob("tensorrt*bindings-*.whl")) if WHEELS else ():
        if path.name.split("-")[1].startswith(f"{version}.") and tag in path.name:
            return path
    pytest.skip(f"no bindings of TensorRT {version} in LATFARM_TENSORRT_WHEELS={WHEELS!r}")


def stand_ins(bindings: Path, folder: Path, compile_library: Callable[..., Path]) -> None:
    """Compile empty libraries in place of those behind the bindings."""
    if shutil.which("nm") is None or shutil.which("readelf") is None:
        pytest.skip("binutils are not here")
    told = subprocess.run(
        ["nm", "-D", "--undefined-only", str(bindings)], check=True, capture_output=True, text=True
    ).stdout
    wanted = [line.split()[-1].split("@")[0] for line in told.splitlines()]
    source = folder / "stand_in.c"
    source.write_text(
        "".join(f"void *{n}(void) {{ return 0; }}\n" for n in wanted if _BEHIND.match(n))
    )
    told = subprocess.run(
        ["readelf", "-d", str(bindings)], check=True, capture_output=True, text=True
    ).stdout
    for name in re.findall(r"Shared library: \[(libnv[^\]]+)\]", told):
        compile_library(source, folder / name, f"-Wl,-soname,{name}")


def check(
    version: str,
    double: str,
    source: Path,
    driver: Path,
    compile_library: Callable[..., Path],
    folder: Path,
) -> list[str]:
    """Return what `vendor_check.py` prints about the source of a double."""
    with zipfile.ZipFile(wheel_of(version)) as wheel:
        wheel.extractall(folder)
    bindings = folder / "tensorrt_bindings" / "tensorrt.so"
    stand_ins(bindings, folder, compile_library)
    assert f'__version__ = "{version}.' in (bindings.parent / "__init__.py").read_text()
    environment = dict(
        os.environ,
        LD_LIBRARY_PATH=os.pathsep.join([str(folder), str(driver.parent)]),
        LATFARM_TENSORRT_DOUBLE=double,
    )
    done = subprocess.run(
        [sys.executable, str(DOUBLE / "vendor_check.py"), str(bindings), str(source)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr
    found = [line for line in done.stdout.split("\n") if line.strip()]
    assert done.returncode == bool(found)
    return found


@pytest.mark.parametrize(("version", "double"), VERSIONS)
def test_the_double_offers_only_what_the_vendor_does(
    driver: Path, compile_library: Callable[..., Path], tmp_path: Path, version: str, double: str
) -> None:
    source = DOUBLE / "tensorrt.py"
    differing = check(version, double, source, driver, compile_library, tmp_path)
    if double == "8.4":
        # The double of 8.4 rightly lacks what versions 8.5 and 8.6 added.
        assert len(differing) == 2
        differing = [line for line in differing if "False in the double, True in" not in line]
    assert differing == []


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "name: str, memory: int",
            "memory: int, name: str",
            "IExecutionContext.set_tensor_address",
        ),
        ("num_DLA_cores", "number_of_cores", "Builder.number_of_cores: not there"),
        ("LAYER_NAMES_ONLY=0, NONE=1, DETAILED=2", "DETAILED=1", "ProfilingVerbosity.DETAILED"),
        ("stream_handle: int) -> bool", "stream_handle: str) -> bool", "execute_async_v3"),
    ],
)
def test_the_check_finds_what_is_wrong(
    driver: Path,
    compile_library: Callable[..., Path],
    tmp_path: Path,
    before: str,
    after: str,
    says: str,
) -> None:
    texts = {path.name: path.read_text() for path in DOUBLE.glob("*.py")}
    assert any(before in text for text in texts.values())
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(before, after))
    wrong = tmp_path / "tensorrt.py"
    differing = check("10.3", "10.3", wrong, driver, compile_library, tmp_path)
    assert any(says in line for line in differing), differing
