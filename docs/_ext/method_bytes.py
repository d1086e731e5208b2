"""Measure what each method sends and receives; `python docs/_ext/method_bytes.py` writes `method_bytes.json`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import covey
from covey.storage import write_json

FILE = Path(__file__).with_suffix(".json")
ABOUT = (
    "digits, the default model (with batch norm for fedbn), 10 clients, 4 in a round, or all where the method asks all"
)
GIVEN: dict[str, Any] = {"clients": 10, "cohort": 4, "rounds": 3, "workers": 1, "local": {"epochs": 2, "batch": 50}}


MODELS: dict[str, dict[str, Any]] = {"fedbn": {"model": {"name": "mlp", "norm": "batch"}}}
"""Settings of methods that need another model."""


def cost(method: str, folder: Path, size: int) -> dict[str, float]:
    """Return the bytes to and from a client of the third round, as multiples of the model's bytes."""
    record = covey.run(GIVEN | MODELS.get(method, {}), method=method, out=folder / method, progress=False).metrics[-1]
    return {way: round(record[f"bytes_{way}"] / len(record["clients"]) / size, 2) for way in ("down", "up")}


def model_bytes(folder: Path, method: str = "fedavg") -> int:
    """Return the bytes of a method's model as it is sent: floating-point numbers, four bytes each."""
    given = GIVEN | MODELS.get(method, {})
    model = covey.run(given, rounds=1, out=folder / f"model-{method}", progress=False).model()
    return 4 * sum(one.numel() for one in model.state_dict().values() if one.is_floating_point())


def main() -> None:
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        size = model_bytes(Path(folder))
        for name in covey.methods.names():
            try:
                own = model_bytes(Path(folder), name) if name in MODELS else size
                measured[name] = cost(name, Path(folder), own)
            except Exception as error:
                print(f"{name}: {error}", file=sys.stderr)
    write_json(FILE, {"about": ABOUT, "methods": measured})
    print(f"Written: {FILE}")


if __name__ == "__main__":
    main()
