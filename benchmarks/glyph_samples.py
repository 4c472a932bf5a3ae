"""A picture of the embedded data set: six test images of every third class.

python benchmarks/glyph_samples.py
"""

from pathlib import Path

import numpy as np
from PIL import Image

from fscil.data import load
from fscil.runtime.files import replacing

ROWS, CLASSES = 6, range(0, 100, 3)


def main() -> None:
    test = load("glyphs").test
    columns = [test.batch(np.flatnonzero(test.labels == label)[:ROWS])[0] for label in CLASSES]
    sheet = np.concatenate([np.concatenate(list(column)) for column in columns], axis=1)
    with replacing(Path("results/glyphs-samples.png")) as file:
        Image.fromarray(sheet).save(file, "PNG")


if __name__ == "__main__":
    main()
