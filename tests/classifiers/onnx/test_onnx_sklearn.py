"""Scikit-learn classifiers, exported by skl2onnx, against scikit-learn itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from covcal_cli.errors import CovcalError
from tests.classifiers.opening import open_onnx
from tests.classifiers.settled import settled

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),  # of the exporter and of training that stops early
]

NAMES = np.array(["cat", "dog", "eel"])
X = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
CLASS = np.repeat([0, 1, 2], 30)
X[np.arange(90), CLASS] += 2


def exported(folder: Path, model: Any, classes: int, zipped: bool) -> Path:
    skl2onnx = pytest.importorskip("skl2onnx")
    model.fit(X, NAMES[np.minimum(CLASS, classes - 1)])
    options = None if zipped else {"zipmap": False}
    path = folder / "model.onnx"
    path.write_bytes(skl2onnx.to_onnx(model, X[:1], options=options).SerializeToString())
    return path


LINEAR = {
    "logistic regression": (LogisticRegression(), 4),
    "scaled logistic regression": (make_pipeline(StandardScaler(), LogisticRegression()), 4),
    "network": (make_pipeline(StandardScaler(), MLPClassifier((5,), max_iter=30)), 5),
}


@pytest.mark.parametrize(("classes", "zipped"), [(2, True), (3, True), (2, False)])
@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_head_gives_scikit_learns_probabilities(
    name: str, classes: int, zipped: bool, tmp_path: Path
) -> None:
    model, width = LINEAR[name]
    opened = open_onnx(exported(tmp_path, model, classes, zipped))
    classifier = opened.prove({"X": X})
    features, logits = classifier.run({"X": X})
    assert features is not None
    assert classifier.weight is not None
    assert classifier.bias is not None
    assert features.shape == (90, width)
    assert opened.class_names == tuple(NAMES[:classes])
    expected = model.predict_proba(X)
    np.testing.assert_allclose(special.softmax(logits, axis=1), expected, rtol=1e-4, atol=1e-6)
    affine = features @ classifier.weight.T + classifier.bias
    assert np.abs(affine - logits).max() <= 1e-5 * np.abs(logits).max()


ANY = {
    "forest": RandomForestClassifier(3, random_state=0),
    "boosted trees": GradientBoostingClassifier(n_estimators=3, random_state=0),
    "naive Bayes": GaussianNB(),
    "calibrated": CalibratedClassifierCV(LogisticRegression(), cv=3),
}


@pytest.mark.parametrize(
    ("name", "classes"), [*((name, 2) for name in ANY), ("naive Bayes", 3), ("calibrated", 3)]
)
def test_without_a_linear_head_the_choice_is_named_and_works(
    name: str, classes: int, tmp_path: Path
) -> None:
    path = exported(tmp_path, ANY[name], classes, zipped=True)
    with pytest.raises(CovcalError, match="--phi none"):
        open_onnx(path)
    opened = open_onnx(path, phi="none")
    features, logits = settled(opened.prove({"X": X}), {"X": X})
    assert features is None
    assert opened.class_names == tuple(NAMES[:classes])
    expected = ANY[name].predict_proba(X)
    np.testing.assert_allclose(special.softmax(logits, axis=1), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_label_that_does_not_follow_the_probabilities_is_noted(
    classes: int, tmp_path: Path
) -> None:
    """A support vector machine votes; covcal's label is the most probable class."""
    machine = SVC(probability=True, random_state=0, kernel="sigmoid", gamma=2.0)
    path = exported(tmp_path, machine, classes, zipped=False)
    opened = open_onnx(path, phi="none")
    classifier = opened.prove({"X": X})
    _, logits = classifier.run({"X": X})
    differ = (machine.predict(X) != NAMES[logits.argmax(axis=1)]).any()
    assert differ
    noted = [
        note for note in classifier.proof.remarks if "the model returns is another class" in note
    ]
    assert len(noted) == 1
    classifier.run({"X": X})
    assert [note for note in classifier.proof.remarks if "the model returns" in note] == noted


@pytest.mark.parametrize("name", LINEAR)
def test_a_label_that_follows_the_probabilities_is_not(name: str, tmp_path: Path) -> None:
    opened = open_onnx(exported(tmp_path, LINEAR[name][0], 3, zipped=False))
    classifier = opened.prove({"X": X})
    assert not any("the model returns" in note for note in classifier.proof.remarks)
