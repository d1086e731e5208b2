"""Runs Triton kernels in Triton's interpreter, on the CPU."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _works() -> bool:
    """True if Triton is installed and works with this NumPy, which has withdrawn int() of one-element arrays."""
    if importlib.util.find_spec("triton") is None:
        return False
    return np.lib.NumpyVersion(np.__version__) < "2.4.0" or version("triton") >= "3.7"


needs_interpreter = pytest.mark.skipif(not _works(), reason="Triton's interpreter is not available.")


def multiply_bf16() -> None:
    """Have the interpreter multiply bfloat16 as numbers: Triton 3.6's holds them as 16 bits, and multiplies those."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder, bf16 = interpreter.InterpreterBuilder, importlib.import_module("triton.language").bfloat16
    dot = builder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != bf16:
            return handle
        bits = handle.data.view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), importlib.import_module("triton.language").float32)

    builder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)


def run_interpreted(module: str) -> None:
    """Run a test module as a program, with all its Triton kernels in the interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
