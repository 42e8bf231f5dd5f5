"""Compare the processor time of ``covcal extract`` with plain Python loops over the same data.

    python examples/research/benchmark_extract.py [--images 2000] [--threads 2] [--rounds 3]
                                           [--tables 500000x50 100000x512] [--formats parquet csv]

The images are digits (PNG, 28x28, grey) for a small LeNet, and photos (JPEG, 320x240, cropped to
224) for a small convolutional network. The plain loops decode every image with Pillow and NumPy,
and run ONNX Runtime on batches in memory. The plain loops use as many threads as covcal. In covcal,
images are decoded while the classifier runs.

The tables are two files of random numbers for a linear classifier. The plain loop reads the files
with pyarrow, runs the classifier, and writes features, logits, labels, splits and ids with h5py.
The plain loop has no random splits, checks, checksums or ``--resume``. For tables, the plain loop
and covcal use one thread.

Processor seconds are sums over threads. The fastest of several rounds is reported.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import onnx
import onnxruntime
from benchmark_extract_memory import write_classifier as write_linear
from onnx import helper, numpy_helper
from PIL import Image

from covcal_cli.classifiers.open import open_classifier
from covcal_cli.data.folder import FolderData
from covcal_cli.data.preprocessing.pixels import Resize
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """One kind of images, with a classifier and a function that decodes an image."""

    name: str
    suffix: str
    stored: tuple[int, ...]
    row: tuple[int, ...]
    batch: int
    asked: Preprocessing
    by_hand: Callable[[Path], np.ndarray]
    convolutions: tuple[tuple[int, int, int], ...]


def digit(path: Path) -> np.ndarray:
    """Decode one digit with Pillow and NumPy."""
    with Image.open(BytesIO(path.read_bytes())) as image:
        pixels = np.asarray(image)
    row: np.ndarray = np.multiply(pixels, 1 / 255, dtype=np.float32)
    return row[None]


def photo(path: Path) -> np.ndarray:
    """Decode one photo: resize its shorter side to 256 pixels, and crop the central 224."""
    with Image.open(BytesIO(path.read_bytes())) as image:
        width, height = image.size
        size = (int(256 * width / height), 256)
        resized = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - 224) // 2, (size[1] - 224) // 2
    pixels = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    row = np.empty((3, 224, 224), np.float32)
    for channel, (mean, std) in enumerate(zip(MEAN, STD, strict=True)):
        np.multiply(pixels[..., channel], 1 / 255 / std, out=row[channel], dtype=np.float32)
        row[channel] -= mean / std
    return row


PRESET = Preprocessing(
    resize=Resize("short", short=256), crop=(224, 224), scale=1 / 255, mean=MEAN, std=STD
)
CASES = (
    # Each convolution as (channels, kernel side, stride).
    Case(
        "digits",
        "png",
        (28, 28),
        (1, 28, 28),
        256,
        Preprocessing(),
        digit,
        ((20, 5, 1), (50, 5, 2), (64, 3, 2)),
    ),
    Case(
        "photos",
        "jpg",
        (240, 320, 3),
        (3, 224, 224),
        32,
        PRESET,
        photo,
        ((32, 7, 4), (64, 3, 2), (128, 3, 2)),
    ),
)


def write_images(folder: Path, case: Case, count: int) -> None:
    """Save smooth random images in two class folders."""
    rng = np.random.default_rng(0)
    height, width = case.stored[:2]
    for name in ("0", "1"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        coarse = rng.integers(0, 256, size=(7, 7, *case.stored[2:]), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        image.save(folder / str(number % 2) / f"{number:06d}.{case.suffix}")


def write_classifier(path: Path, case: Case, *, features: bool = False) -> None:
    """Save a small convolutional network as ONNX; `features` adds the features as an output."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes = []
    value, channels = "x", case.row[0]
    for index, (width, side, stride) in enumerate(case.convolutions):
        fan = channels * side * side
        weights[f"c{index}"] = rng.normal(size=(width, channels, side, side)) / fan**0.5
        nodes.append(
            helper.make_node(
                "Conv", [value, f"c{index}"], [f"m{index}"], strides=[stride, stride], pads=[1] * 4
            )
        )
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"]))
        value, channels = f"r{index}", width
    weights["w1"] = rng.normal(size=(128, channels)) / channels**0.5
    weights["w2"] = rng.normal(size=(CLASSES, 128)) / 128**0.5
    weights["b1"], weights["b2"] = np.zeros(128), np.zeros(CLASSES)
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["phi"]),
        helper.make_node("Gemm", ["phi", "w2", "b2"], ["y"], transB=1),
    ]
    kind = onnx.TensorProto.FLOAT
    outputs = [helper.make_tensor_value_info("y", kind, ["N", CLASSES])]
    if features:
        outputs.append(helper.make_tensor_value_info("phi", kind, ["N", 128]))
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", kind, ["N", *case.row])],
        outputs,
        [numpy_helper.from_array(array.astype(np.float32), n) for n, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def bare_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Open a model in ONNX Runtime without covcal. Idle threads sleep."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def processor_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def compare(case: Case, folder: Path, images: int, threads: int, rounds: int) -> float:
    """Print the seconds of covcal and of plain loops over images. Return their ratio."""
    write_images(folder / "images", case, images)
    write_classifier(folder / "model.onnx", case)
    write_classifier(folder / "features.onnx", case, features=True)
    session = bare_session(folder / "features.onnx", threads)
    opened = open_classifier(folder / "model.onnx", threads=threads)
    data = FolderData(folder / "images", opened.inputs)
    files = [data.path / name for name in data.ids]
    (wanted,) = opened.inputs
    pipeline = case.asked.resolve(wanted.shape, wanted.dtype)
    rows = np.arange(len(files))
    found: list[np.ndarray] = []
    expected: list[np.ndarray] = []

    def decode_some(first: int) -> None:
        for path in files[first::threads]:
            case.by_hand(path)

    def decode() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decode_some, range(threads)))

    def infer() -> None:
        expected[:] = [session.run(None, {"x": block})[0] for block in blocks]

    def together() -> None:
        found.clear()
        size = case.batch
        batches = data.batches(pipeline, rows, size=size, threads=threads)
        with closing(batches):
            found.extend(classifier.run(batch.inputs)[1] for batch in batches)

    stacked = np.stack([case.by_hand(path) for path in files])
    blocks = [stacked[start : start + case.batch] for start in range(0, len(files), case.batch)]
    classifier = opened.prove({wanted.name: blocks[0]})
    seconds = [[processor_seconds(run) for run in (decode, infer, together)] for _ in range(rounds)]
    if not np.allclose(np.concatenate(found), np.concatenate(expected), atol=1e-4):
        raise SystemExit(f"{case.name}: covcal and the plain Python loop give different logits")
    decoding, running, both = np.min(seconds, axis=0)
    ratio = float(both / (decoding + running))
    print(f"{case.name:8}{decoding:10.3f}{running:10.3f}{both:12.3f}{ratio:8.2f}")
    return ratio


def write_tables(folder: Path, rows: int, width: int, suffix: str) -> None:
    """Save a source table and a target table of random numbers and labels."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    for name in ("source", "target"):
        numbers = rng.normal(size=(rows, width)).astype(np.float32)
        columns = {f"f{index}": numbers[:, index] for index in range(width)}
        table = pyarrow.table(columns | {"label": rng.integers(CLASSES, size=rows)})
        write = {"parquet": pyarrow.parquet.write_table, "csv": pyarrow.csv.write_csv}[suffix]
        write(table, folder / f"{name}.{suffix}")


def blocks_of(path: Path) -> Iterator[list[np.ndarray]]:
    """Yield blocks of rows of a table, as a list of columns."""
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".csv":
        batches = pyarrow.csv.open_csv(path, pyarrow.csv.ReadOptions(use_threads=False))
    else:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches(8192, use_threads=False)
    return ([column.to_numpy() for column in batch.columns] for batch in batches)


def extract_by_hand(model: Path, folder: Path, rows: int, width: int, suffix: str) -> Path:
    """Run the classifier on tables, and write the arrays of a features file, without covcal."""
    session, output, size = bare_session(model, 1), folder / "bare.h5", 2048
    with h5py.File(output, "w") as file:
        for name in ("source", "target"):
            features = file.create_dataset(f"{name}/features", (rows, width), "f4")
            logits = file.create_dataset(f"{name}/logits", (rows, CLASSES), "f4")
            labels, start = np.empty(rows, np.int64), 0
            for columns in blocks_of(folder / f"{name}.{suffix}"):
                block = np.stack(columns[:width], axis=1).astype(np.float32)
                batches = [block[first : first + size] for first in range(0, len(block), size)]
                part = slice(start, start + len(block))
                features[part] = np.maximum(block, 0)  # the model's ReLU
                logits[part] = np.concatenate([session.run(None, {"x": x})[0] for x in batches])
                labels[part] = columns[width]
                start = part.stop
            file[f"{name}/labels"] = labels
            file[f"{name}/split"] = np.zeros(rows, np.uint8)
            file[f"{name}/ids"] = np.arange(rows).astype(f"S{len(str(rows - 1))}")
    return output


def compare_tables(folder: Path, rows: int, width: int, suffix: str, rounds: int) -> None:
    """Print the seconds of ``covcal extract`` and of a plain loop over tables, and their ratio."""
    model, output = folder / "linear.onnx", folder / "features.h5"
    write_linear(model, width)
    write_tables(folder, rows, width, suffix)
    tables = (folder / f"source.{suffix}", folder / f"target.{suffix}")
    settings = ExtractSettings(threads=1)

    def bare() -> None:
        extract_by_hand(model, folder, rows, width, suffix)

    def whole() -> None:
        extract(model, *tables, output, settings, force=True)

    seconds = [[processor_seconds(run) for run in (bare, whole)] for _ in range(rounds)]
    with h5py.File(output) as ours, h5py.File(folder / "bare.h5") as theirs:
        for name in ("source/features", "target/features", "source/ids", "target/labels"):
            if not np.array_equal(ours[name][:], theirs[name][:]):
                raise SystemExit(
                    f"{suffix}: covcal and the plain Python loop give different {name}"
                )
        if not np.allclose(ours["target/logits"][:], theirs["target/logits"][:], atol=1e-4):
            raise SystemExit(f"{suffix}: covcal and the plain Python loop give different logits")
    by_hand, by_covcal = np.min(seconds, axis=0)
    name = f"{suffix} 2 x {rows} x {width}"
    print(f"{name:28}{by_hand:10.3f}{by_covcal:10.3f}{by_covcal / by_hand:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=["500000x50", "100000x512"])
    parser.add_argument("--formats", nargs="*", default=["parquet", "csv"])
    options = parser.parse_args()
    print(f"Processor seconds for {options.images} images with {options.threads} thread(s)")
    print(f"{'':8}{'decode':>10}{'run':>10}{'pipeline':>12}{'ratio':>8}")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            compare(case, Path(folder), options.images, options.threads, options.rounds)
    print(f"{'':28}{'plain loop':>10}{'extract':>10}{'ratio':>8}")
    for size in options.tables:
        rows, width = map(int, size.split("x"))
        for suffix in options.formats:
            with tempfile.TemporaryDirectory() as folder:
                compare_tables(Path(folder), rows, width, suffix, options.rounds)


if __name__ == "__main__":
    main()
