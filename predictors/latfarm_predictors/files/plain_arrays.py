"""Reads the arrays of an .npz file that may come from anywhere: plain numbers, bounded in size.

numpy makes an array as large as the file's header claims before it reads the first number. So
headers are read first here, and compared with the number of bytes that are there.
"""

from __future__ import annotations

import io
import zipfile
from math import prod
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 512 * 2**20
"""Largest size of the arrays of one file together, in bytes; usual are 10 to 100 megabytes."""
MOST_ARRAYS = 20_000
"""Largest number of arrays in one file; a bundle has some hundreds."""
_KINDS = "biuf"
"""The kinds of numbers that are read: truth values, integers and floating point numbers."""
_MOST_DIMENSIONS = 4
"""Largest number of dimensions of an array."""
_MOST_HEADER = 4096
"""Largest size of an array's header, in bytes; those of bundles have 118."""
_LARGEST = 1e100
"""Largest size of a number; sums and squares of such numbers are finite."""
_SUFFIX = ".npy"
"""What the name of an array ends in inside an .npz file."""

AnyArray = npt.NDArray[Any]
"""Numbers of any type."""


def read_arrays(content: bytes) -> dict[str, AnyArray]:
    """The arrays of an .npz file by name, in the machine's byte order.

    Raises:
        ValueError: an array holds something other than numbers, claims another size than it has,
            or all arrays together are too large.
        zipfile.BadZipFile: the file is no archive.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_ARRAYS:
            raise ValueError(f"{len(entries)} arrays in one file; {MOST_ARRAYS} are allowed")
        size = sum(entry.file_size for entry in entries)
        if size > MOST_BYTES:
            raise ValueError(f"{size} bytes of arrays in one file; {MOST_BYTES} are allowed")
        return {
            entry.filename.removesuffix(_SUFFIX): read_array(archive.read(entry))
            for entry in entries
        }


def read_array(content: bytes) -> AnyArray:
    """The array that an .npy file holds.

    Raises:
        ValueError: it holds something other than numbers, or claims another size than it has.
    """
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"an array has version {version} of numpy's format, not (1, 0)")
    try:
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(
            stream, max_header_size=_MOST_HEADER
        )
    except (TokenError, MemoryError, RecursionError) as error:
        raise ValueError("the header of an array cannot be read") from error
    if dtype.kind not in _KINDS or dtype.itemsize > 8:
        raise ValueError(f"an array holds {dtype}, which is no plain number")
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"an array has the shape {shape}")
    start = stream.tell()
    if prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError(f"an array of shape {shape} claims another size than it has")
    array: AnyArray = np.frombuffer(content, dtype, prod(shape), start)
    array = array.reshape(shape, order="F" if columns_first else "C")
    return np.array(array, dtype=dtype.newbyteorder("="), order="F" if columns_first else "C")


def check_numbers(name: str, array: AnyArray, *, endless: bool = False) -> None:
    """Check that all numbers of an array can be computed with.

    Args:
        name: name of the array, for the error.
        array: the array.
        endless: whether numbers may be infinite, as the thresholds of leaves are.

    Raises:
        ValueError: a number is not finite, or larger than 1e100.
    """
    if array.dtype.kind != "f":
        return
    usable = np.isfinite(array)
    if array.dtype.itemsize == 8:  # smaller types hold no larger numbers
        usable &= np.abs(array) <= _LARGEST
    if endless:
        usable |= np.isinf(array)
    if not usable.all():
        raise ValueError(f"the array {name} holds a number that is not finite, or above 1e100")
