"""The double of the CUDA driver, as TensorRT's double calls it."""

from __future__ import annotations

import ctypes

driver = ctypes.CDLL("libcuda.so.1")
driver.latfarm_double_launch.argtypes = (
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
driver.latfarm_double_capturing.argtypes = (ctypes.c_void_p,)
driver.cuStreamSynchronize.argtypes = (ctypes.c_void_p,)
