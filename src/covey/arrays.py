"""Types of arrays and of nested state, shared by every layer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

State = dict[str, Any]
"""A checkpoint's content: a nested mapping of tensors, NumPy arrays and JSON values."""
