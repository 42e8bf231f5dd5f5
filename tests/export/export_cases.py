"""A made ONNX model, files as extract and adapt write them of it, and a calibration: one folder."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, softmax

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.files import sha256_of
from covcal_cli.formats.decision import CurvePoint, Decision
from covcal_cli.formats.writer import utf8
from covcal_cli.maths.networks import networks_sha256
from covcal_cli.records import Input, write_document
from tests.classifiers.onnx.onnx_graphs import D_IN, HIDDEN, Graph, node
from tests.cli_runner import Outcome, covcal
from tests.made_files import Arrays, edited, write_adapted, write_features

MEMBERS = 3
PLAIN = [*HIDDEN, node("Gemm", "phi w b", "y", transB=1)]
WIDTH, CLASSES = 5, 3
ADDED = ["probabilities", "label", "confidence"]
Array = NDArray[Any]


def made_networks(
    width: int, classes: int, *, members: int = MEMBERS, components: bool = True, seed: int = 0
) -> dict[str, Array]:
    """Draw networks as adapt writes them: projection, psi with ReLU, a head of two layers."""
    rng = np.random.default_rng(seed)
    inner = min(width, 4) if components else width
    arrays: dict[str, Array] = {
        "projection/mean": rng.normal(size=width),
        "projection/scale": np.array([1.7]),
        "psi/weight_0": rng.normal(size=(members, inner, 6)),
        "psi/bias_0": rng.normal(size=(members, 6)),
        "psi/output_relu": np.array([1]),
        "head/weight_0": rng.normal(size=(members, 6, 5)),
        "head/bias_0": rng.normal(size=(members, 5)),
        "head/weight_1": rng.normal(size=(members, 5, classes)),
        "head/bias_1": rng.normal(size=(members, classes)),
    }
    if components:
        arrays["projection/components"] = rng.normal(size=(width, inner))
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def member_logits(networks: Mapping[str, Array], features: Array) -> NDArray[np.float64]:
    """Return every member's logits, shape (M, n, K), in float64: written apart from covcal's."""
    x = features.astype(np.float64) - networks["projection/mean"]
    if "projection/components" in networks:
        x = x @ networks["projection/components"]
    x = x / networks["projection/scale"]
    members = []
    for member in range(len(networks["psi/weight_0"])):
        hidden = x
        for layer in ("psi/{}_0", "head/{}_0", "head/{}_1"):
            weight, bias = (networks[layer.format(what)][member] for what in ("weight", "bias"))
            hidden = hidden @ weight + bias
            if layer != "head/{}_1":
                hidden = np.maximum(hidden, 0)
        members.append(hidden)
    return np.stack(members)


def expected_probabilities(
    logits: Array,
    temperature: float,
    networks: Mapping[str, Array] | None,
    features: Array | None,
    offsets: Array | float = 0.0,
    aligned: float | None = None,
) -> NDArray[np.float64]:
    """Return softmax of the forecaster's logits over T and the offsets, by SciPy.

    With T_a, `aligned`, it is the mean of the classifier's and the aligned forecaster's.
    """
    if aligned is not None:
        parts = ((None, temperature), (networks, aligned))
        both = [expected_probabilities(logits, T, its, features) for its, T in parts]
        return np.asarray(np.mean(both, axis=0))
    scaled = logits.astype(np.float64)
    if networks is not None and features is not None:
        members = log_softmax(member_logits(networks, features), axis=2)
        scaled = logsumexp(members, axis=0) - np.log(len(members))
    return np.asarray(softmax(scaled / temperature + offsets, axis=1))


@dataclass(frozen=True)
class Case:
    """A model with its calibration in one folder."""

    model: Path
    document: Path
    networks: dict[str, Array] | None
    temperature: float
    offsets: tuple[float, ...] = ()  # of the classes
    aligned: float | None = None  # T_a of a blend
    of_label: float = 0.0  # of the classifier's label

    def moves(self, logits: Array) -> NDArray[np.float64]:
        """Return what is added to the scaled logits of every row, shape (n, K)."""
        own = np.eye(logits.shape[1])[logits.argmax(axis=1)]
        return np.asarray(np.array(self.offsets or 0.0) + self.of_label * own)

    def export(self, *more: Any, output: str = "calibrated.onnx") -> Outcome:
        """Run ``covcal export``."""
        return covcal(
            "export", self.model, "-c", self.document, "-o", self.model.parent / output, *more
        )

    @property
    def output(self) -> Path:
        """The default output."""
        return self.model.parent / "calibrated.onnx"


def decided(case: Case, threshold: float) -> Path:
    """Write a decision for a calibration, and return its path."""
    path = case.document.with_name("decide.json")
    decision = Decision(
        error=0.1,
        certainty=0.9,
        covers="future rows",
        score="confidence",
        threshold=threshold,
        share=0.5,
        rows=100,
        splits=("train",),
        is_promise=False,
        expected=None,
        labels=None,
        labels_needed=0,
        promised_share=0.0,
        curve=(CurvePoint(1.0, 0.2, 0.1, 0.3),),
        planned=(CurvePoint(1.0, 0.2, 0.1, 0.3),),
        sets=None,
        notes=(),
        inputs=tuple(
            Input(role, case.document, sha256_of(case.document))
            for role in ("calibration", "features")
        ),
    )
    write_document(decision, path, force=False)
    return path


def run_bare(path: Path, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Run a model by ONNX Runtime as its users would; return the outputs by name."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def tensors_of(model: Path, names: list[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Return tensors from inside a model."""
    proto = onnx.load(model)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(value) for value in session.run(names, dict(feeds))]


def calibrated(
    model: Path,
    *,
    method: str,
    phi: str,
    logits: str,
    width: int,
    classes: int = 3,
    networks: dict[str, Array] | None = None,
    temperature: float | None = None,
    offsets: tuple[float, ...] = (),
    of_label: float = 0.0,
    attributes: Mapping[str, str] | None = None,
) -> Case:
    """Write features.h5 or adapted.h5 and cal.json beside `model`, as the commands would.

    The rows are made: what matters of them is that they name the model and its networks.
    """
    folder = model.parent
    made_by: dict[str, Any] = {
        "model_name": model.name,
        "model_sha256": sha256_of(model),
        "features_tensor": phi,
        "logits_tensor": logits,
        **(attributes or {}),
    }
    domains = {name: _domain(name, width, classes) for name in ("source", "target")}
    path = write_features(
        folder / "features.h5",
        source=domains["source"],
        target=domains["target"],
        attributes=made_by,
    )
    if networks is not None:
        made_by |= {"networks_sha256": networks_sha256(networks), "features_file": "features.h5"}
        adapted = {name: _adapted(domain, networks) for name, domain in domains.items()}
        path = write_adapted(
            folder / "adapted.h5",
            source=adapted["source"],
            target=adapted["target"],
            attributes=made_by,
        )
        with edited(path) as file:
            for name, values in networks.items():
                file[f"networks/{name}"] = values
    document = folder / "cal.json"
    # The command makes the same file, and would read the features file twice.
    settings = CalibrateSettings(method=method, allow_limit=True)
    write_document(calibrate(path, settings), document, force=True)
    content = json.loads(document.read_text(encoding="utf-8"))
    if temperature is not None:
        content["temperatures"]["forecaster"] = temperature
    if temperature is not None or offsets or of_label:
        content |= {"class_offsets": list(offsets), "confidence_offset": of_label}
        write_document(content, document, force=True)
    used = content["temperatures"]
    return Case(model, document, networks, used["forecaster"], offsets, used["aligned"], of_label)


def _domain(name: str, width: int, classes: int) -> Arrays:
    sizes = (60, 90, 30)
    n = sum(sizes)
    rng = np.random.default_rng([3, *name.encode()])
    z = rng.normal(size=(n, classes)) * 3
    return {
        "features": rng.normal(size=(n, width)).astype(np.float32),
        "logits": z.astype(np.float32),
        "labels": (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1).astype(np.int64),
        "split": np.repeat([0, 1, 2], sizes).astype(np.uint8),
        "ids": utf8([f"{name}/{row}" for row in range(n)]),
    }


def _adapted(domain: Arrays, networks: Mapping[str, Array]) -> Arrays:
    aligned = member_logits(networks, domain["features"]).astype(np.float32)
    kept = {name: values for name, values in domain.items() if name != "features"}
    return kept | {
        "aligned_logits": aligned,
        "aligned_domain_logits": np.zeros(aligned.shape[:2], np.float32),
        "domain_logits": np.zeros(aligned.shape[1], np.float32),
    }


def rows(shape: tuple[int, ...] = (D_IN,), *, n: int = 40, dtype: Any = np.float32) -> Array:
    """Return rows that the export itself did not look at."""
    return np.random.default_rng(11).normal(size=(n, *shape)).astype(dtype)


def require_right(
    case: Case, x: Array, *, phi: str | Callable[[Array], Array], logits: str
) -> dict[str, Any]:
    """Run both models bare and compare; return the exported model's outputs."""
    before, after = run_bare(case.model, {"x": x}), run_bare(case.output, {"x": x})
    assert list(after)[: len(before)] == list(before)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values, strict=True)
    features, z = tensors_of(case.model, ["maps" if callable(phi) else phi, logits], {"x": x})
    if callable(phi):
        features = phi(features.astype(np.float64))
    z = z.reshape(len(x), -1)
    expected = expected_probabilities(
        z, case.temperature, case.networks, features, case.moves(z), case.aligned
    )
    probabilities, label, confidence = (after[name] for name in list(after)[len(before) :][:3])
    assert probabilities.dtype == confidence.dtype == np.float32
    assert label.dtype == np.int64
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(label, z.argmax(axis=1))
    np.testing.assert_array_equal(confidence, probabilities[np.arange(len(x)), label])
    return after


def plain_case(
    folder: Path,
    *,
    fl: bool = False,
    graph: Graph | None = None,
    networks: dict[str, Array] | None = None,
    method: str | None = None,
    phi: str = "phi",
    logits: str = "y",
    **more: Any,
) -> Case:
    """A model with phi 5 and 3 classes, by default a multilayer perceptron, with networks if `fl`.

    If the folder has a model, this model is returned.
    """
    model = folder / "model.onnx"
    if graph is not None or not model.exists():
        model = (graph or Graph(PLAIN)).save(folder)
    if fl and networks is None:
        networks = made_networks(WIDTH, CLASSES)
    method = method or ("temp" if networks is None else "fl+temp")
    return calibrated(
        model, method=method, phi=phi, logits=logits, width=WIDTH, networks=networks, **more
    )


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def require_counted(case: Case, done: Outcome) -> None:
    """Check the warning on stored rows in which another class is likelier than the label."""
    with h5py.File(case.document.with_name("features.h5")) as file:
        logits = file["target/logits"][:256].astype(np.float64)
    label = logits.argmax(axis=1)
    scores = logits / case.temperature + case.moves(logits)
    count = int((scores.argmax(axis=1) != label).sum())
    assert count > 0
    assert (
        f"in {count} of {len(label)} rows, the predicted class is no longer the most probable class"
        in done.err
    )
    assert "label and confidence instead of the largest of probabilities" in done.err
