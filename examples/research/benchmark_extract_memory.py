"""Show that ``covcal extract`` takes as much memory for a million rows as for ten thousand.

    python examples/research/benchmark_extract_memory.py [--rows 10000 1000000] [--features 512]
                                                [--formats npy npz h5 parquet lists csv]

The classifier is one linear layer, so it needs almost no memory. For comparison, the first line of
the output is the memory of a process that only imports ONNX Runtime and runs one batch. The format
``parquet`` has one column for each feature. The format ``lists`` is Parquet with one column of
lists.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import onnx
from numpy.lib.format import open_memmap
from onnx import helper, numpy_helper

CLASSES = 10
BLOCK = 20_000
_AFTERWARDS = """
import re, time
from pathlib import Path
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(int(peak) / 1024, time.process_time())
"""
_BARE = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.zeros((256, session.get_inputs()[0].shape[1]), "float32")})
"""
_EXTRACT = """
import sys
from pathlib import Path
from covcal_cli.extract.extract import ExtractSettings, extract
model, data, output = map(Path, sys.argv[1:4])
extract(model, None, data, output, ExtractSettings(threads=1))
"""


def write_classifier(path: Path, features: int) -> None:
    """Save a ReLU layer and a linear layer as an ONNX model."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(CLASSES, features)).astype(np.float32),
        "b": np.zeros(CLASSES, np.float32),
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["phi"]),
        helper.make_node("Gemm", ["phi", "w", "b"], ["y"], transB=1),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", kind, ["N", features])],
        [helper.make_tensor_value_info("y", kind, ["N", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def blocks(rows: int, features: int) -> Iterator[np.ndarray]:
    """Yield blocks of random rows."""
    rng = np.random.default_rng(1)
    for start in range(0, rows, BLOCK):
        yield rng.normal(size=(min(BLOCK, rows - start), features)).astype(np.float32)


def write_npy(path: Path, rows: int, features: int) -> None:
    array = open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, features))
    start = 0
    for block in blocks(rows, features):
        array[start : start + len(block)] = block
        start += len(block)
    array.flush()


def write_npz(path: Path, rows: int, features: int) -> None:
    np.savez(path, x=np.concatenate(list(blocks(rows, features))))


def write_h5(path: Path, rows: int, features: int) -> None:
    with h5py.File(path, "w") as file:
        array = file.create_dataset("x", (rows, features), "f4")
        start = 0
        for block in blocks(rows, features):
            array[start : start + len(block)] = block
            start += len(block)


def write_parquet(path: Path, rows: int, features: int) -> None:
    import pyarrow
    import pyarrow.parquet

    whole = np.concatenate(list(blocks(rows, features)))
    columns = {f"f{index}": whole[:, index] for index in range(features)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_lists(path: Path, rows: int, features: int) -> None:
    import pyarrow
    import pyarrow.parquet

    whole = np.concatenate(list(blocks(rows, features))).ravel()
    lists = pyarrow.FixedSizeListArray.from_arrays(whole, features)
    pyarrow.parquet.write_table(pyarrow.table({"x": lists}), path)


def write_csv(path: Path, rows: int, features: int) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(",".join(f"f{index}" for index in range(features)) + "\n")
        for block in blocks(rows, features):
            np.savetxt(file, block, "%.6g", delimiter=",")


FORMATS = {
    "npy": (".npy", write_npy),
    "npz": (".npz", write_npz),
    "h5": (".h5", write_h5),
    "parquet": (".parquet", write_parquet),
    "lists": (".parquet", write_lists),
    "csv": (".csv", write_csv),
}


def measured(code: str, *arguments: Path) -> tuple[float, float]:
    """Run code in a new process. Return the peak memory in MB and the processor seconds."""
    command = [sys.executable, "-c", code + _AFTERWARDS, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peak, seconds = done.stdout.split()
    return float(peak), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["npy", "h5"])
    options = parser.parse_args()
    print(f"Peak memory and processor seconds for rows of {options.features} float32 features")
    print(f"{'':10}{'rows':>10}{'file MB':>10}{'peak MB':>10}{'CPU s':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.onnx"
        write_classifier(model, options.features)
        peak, seconds = measured(_BARE, model)
        print(f"{'bare':10}{256:10}{'':10}{peak:10.0f}{seconds:8.1f}")
        for kind in options.formats:
            suffix, write = FORMATS[kind]
            if suffix == ".parquet" and find_spec("pyarrow") is None:
                print(f"{kind:10}  (pyarrow is missing)")
                continue
            for rows in options.rows:
                data, output = folder / f"data{suffix}", folder / "features.h5"
                write(data, rows, options.features)
                peak, seconds = measured(_EXTRACT, model, data, output)
                size = data.stat().st_size / 1e6
                print(f"{kind:10}{rows:10}{size:10.0f}{peak:10.0f}{seconds:8.1f}", flush=True)
                data.unlink()
                output.unlink()


if __name__ == "__main__":
    main()
