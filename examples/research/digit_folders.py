"""Write the digits of MNIST and USPS as folders of PNG files, in the paper's splits.

    python examples/research/digit_folders.py --data DIR OUTPUT

The script reads DIR/mnist.npz and DIR/usps.npz (keys train_x, train_y, test_x, test_y; uint8
images). The script writes OUTPUT/mnist and OUTPUT/usps. Both folders contain train, val and test,
with one subfolder per digit. The last training digits are the validation rows: 10 000 of MNIST and
1 093 of USPS.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

VALIDATION_ROWS = {"mnist": 10_000, "usps": 1_093}


def write_folders(arrays: Path, folder: Path, validation_rows: int) -> None:
    """Write one data set. The sorted file names have the original order of the rows."""
    with np.load(arrays) as data:
        first = len(data["train_x"]) - validation_rows
        parts = {
            "train": (data["train_x"][:first], data["train_y"][:first]),
            "val": (data["train_x"][first:], data["train_y"][first:]),
            "test": (data["test_x"], data["test_y"]),
        }
    for split, (images, labels) in parts.items():
        for digit in range(10):
            (folder / split / str(digit)).mkdir(parents=True, exist_ok=True)
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(image).save(folder / split / str(label) / f"{row:05d}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write MNIST and USPS as folders of PNG files.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="Folder of the .npz files.")
    arguments = parser.parse_args()
    for name, rows in VALIDATION_ROWS.items():
        write_folders(arguments.data / f"{name}.npz", arguments.output / name, rows)


if __name__ == "__main__":
    main()
