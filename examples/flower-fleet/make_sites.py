"""Make up the measurements of three sites: `python make_sites.py FOLDER` writes FOLDER/<site>/train.npz and test.npz.

Vibration spectra of pumps in four states; at each site one state is the most frequent.
"""

import sys
from pathlib import Path

import numpy as np

SITES = ("harbour", "mill", "quarry")
STATES, BANDS = 4, 24


def main(folder: Path) -> None:
    rng = np.random.default_rng(7)
    spectra = rng.normal(size=(STATES, BANDS))
    for number, site in enumerate(SITES):
        shares = np.full(STATES, 0.1)
        shares[number] = 0.7
        for part, count in (("train", 200), ("test", 50)):
            y = rng.choice(STATES, size=count, p=shares)
            x = (spectra[y] + rng.normal(scale=0.8, size=(count, BANDS))).astype(np.float32)
            (folder / site).mkdir(parents=True, exist_ok=True)
            np.savez(folder / site / f"{part}.npz", x=x, y=y)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
