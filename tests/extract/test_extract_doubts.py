"""What extract doubts aloud: labels in another order than the classes."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from covcal_cli.calibrate.calibrator import Calibrator
from covcal_cli.maths.source_accuracy import SourceAccuracy, better_order, greedy_permutation
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.cli_runner import covcal


def noisy(labels: np.ndarray, share: float, classes: int, seed: int = 0) -> np.ndarray:
    """Return predictions that equal the labels except for a share drawn anew."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(labels)) < share
    return np.where(wrong, rng.integers(0, classes, len(labels)), labels)


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_a_permuted_order_is_found(classes: int, share: float) -> None:
    """The accuracy on held-out rows is that of the best one-to-one matching, by SciPy."""
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 200 * classes)
    order = np.roll(np.arange(classes), 1)
    predictions = noisy(order[labels], share, classes)
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels[::2], predictions[::2]), 1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    found = greedy_permutation(labels[::2], predictions[::2], classes)
    np.testing.assert_array_equal(found[rows], columns)
    judged = (columns[labels[1::2]] == predictions[1::2]).mean()
    better = better_order(labels, predictions, classes)
    assert better is not None
    assert better[0] == pytest.approx(judged)


@pytest.mark.parametrize("classes", [5, 10, 200])
def test_two_exchanged_classes_among_many_are_found(classes: int) -> None:
    """Their rows are few among all rows, but nearly all of them are predicted as the other."""
    labels = np.random.default_rng(classes).integers(0, classes, 60 * classes)
    order = np.arange(classes)
    order[[1, 4]] = [4, 1]
    better = better_order(labels, noisy(order[labels], 0.3, classes), classes)
    assert better is not None
    assert better[1].tolist() == order.tolist()


@pytest.mark.parametrize(("n", "classes"), [(60, 10), (200, 100), (3000, 1000), (1000, 2)])
def test_chance_is_no_permutation(n: int, classes: int) -> None:
    """With many classes and few rows some permutation fits by luck; held-out rows show it."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        labels, predictions = rng.integers(0, classes, (2, n))
        assert better_order(labels, predictions, classes) is None


def test_a_good_or_a_bad_classifier_in_order_is_left_in_peace() -> None:
    """Right half the time, and two classes often confused: nothing is permuted."""
    labels = np.random.default_rng(0).integers(0, 10, 2000)
    assert better_order(labels, noisy(labels, 0.5, 10), 10) is None
    confused = np.where(labels == 3, 5, labels)
    assert better_order(labels, confused, 10) is None
    rare = np.where((labels == 5) & (np.arange(2000) % 9 > 0), 4, labels)
    assert better_order(rare, np.where(rare == 3, 5, rare), 10) is None


def test_too_few_rows_say_nothing() -> None:
    """Below a hundred rows there is no half to judge on."""
    labels = np.arange(90) % 3
    assert better_order(labels, (labels + 1) % 3, 3) is None


def test_a_permutation_of_any_labels_is_one_to_one() -> None:
    """Labels without rows take what is left, their own class where that is free."""
    found = greedy_permutation(np.array([0, 0, 2]), np.array([2, 2, 1]), 5)
    assert found.tolist() == [2, 0, 1, 3, 4]


def test_a_thousand_classes_without_a_pattern_are_no_permutation() -> None:
    """200,000 rows, so that luck has many chances."""
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(0, 1000, (2, 200_000))
    assert better_order(labels, predictions, 1000) is None


IDENTITY = {"wk": np.eye(4, dtype=np.float32), "bk": np.zeros(4, np.float32)}


@pytest.mark.parametrize("column", ["", "gold"])
def test_labels_that_are_predictions_are_doubted(column: str, tmp_path: Path) -> None:
    p = np.random.default_rng(0).dirichlet([2.0, 2.0, 2.0], 80)
    names, path = np.array(["a", "b", "c"]), tmp_path / "t.csv"
    lines = [f"prob_a,prob_b,prob_c,label{',' if column else ''}{column}"]
    for row, share in enumerate(p.round(6).tolist()):
        other = [str(names[row % 3])] if column else []
        lines.append(",".join([*map(str, share), str(names[np.argmax(share)]), *other]))
    path.write_text("\n".join(lines) + "\n")
    done = covcal("extract", path, path, "-o", tmp_path / "f.h5").require_success()
    promised = round(float((1 - p.max(axis=1)).sum()))
    assert f"the confidence suggests {promised} errors" in done.err
    assert ("perhaps the column gold" in done.err) == bool(column)


@pytest.mark.parametrize("turned", [0, 1])
def test_the_command_line_says_it(turned: int, tmp_path: Path) -> None:
    """Every answer is wrong, and right in another order: the warning says which order.

    The remedy is to extract again, so no command suggests to go on.
    """
    x = np.random.default_rng(0).random((300, 4), dtype=np.float32)
    nodes = [node("Relu", "x", "phi"), node("Gemm", "phi wk bk", "y", transB=1)]
    model = Graph(nodes, constants=IDENTITY, shape=("N", 4)).save(tmp_path)
    y = (x.argmax(axis=1) + turned) % 4
    np.savez(tmp_path / "s.npz", x=x, y=y)
    np.savez(tmp_path / "t.npz", x=x, y=(y + 1) % 4)
    done = covcal("extract", model, "s.npz", "t.npz", cwd=tmp_path).require_success()
    expected = (
        "warning: the classifier gets 0.0 % of the source right, but would get 100 % right with "
        "the classes in another order: rows of class "
    )
    assert (expected in done.err) == bool(turned)
    assert done.err.count("another order") == turned  # never of the target, whose labels are unread
    steps = [done, covcal("calibrate", "--force", cwd=tmp_path), covcal("estimate", cwd=tmp_path)]
    assert [("\nnext: " in f"\n{step.err}") for step in steps] == [not turned] * 3
    verdict = covcal("inspect", "cal.json", cwd=tmp_path).require_success().out
    assert (
        "Do not use this calibration, because the classes seem to be in the" in verdict
    ) == bool(turned)


def test_a_run_with_classes_in_the_wrong_order_exports_no_model(tmp_path: Path) -> None:
    """The warning, which extract and calibrate give, is printed once."""
    x = np.random.default_rng(0).random((300, 4), dtype=np.float32)
    model = Graph([node("Gemm", "x wk bk", "y")], constants=IDENTITY, shape=("N", 4)).save(tmp_path)
    np.savez(tmp_path / "s.npz", x=x, y=(x.argmax(axis=1) + 1) % 4)
    np.savez(tmp_path / "t.npz", x=x)
    done = covcal("run", model, "s.npz", "t.npz", cwd=tmp_path).require_success()
    assert done.err.count("in another order") == 1
    assert "No calibrated model was written, because the model would output" in done.out
    assert not (tmp_path / "covcal-run/calibrated.onnx").exists()
    assert (tmp_path / "covcal-run/report.html").exists()


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ((0, 3, 2, 1), "90 and 270 seem exchanged."),
        ((1, 0, 3, 2), "0 and 90 seem exchanged, 180 and 270 seem exchanged."),
        (
            (1, 2, 0, 3),
            "rows of class 0 are predicted as 90, rows of class 90 are predicted as 180, rows "
            "of class 180 are predicted as 0.",
        ),
    ],
)
def test_the_exchanged_classes_are_named(order: tuple[int, ...], sentence: str) -> None:
    """Most frequent label first; a cycle of three is no exchange, and says what is answered."""
    labels = np.repeat(np.arange(4), (400, 300, 200, 100))
    np.random.default_rng(0).shuffle(labels)
    predictions = noisy(np.array(order)[labels], 0.1, 4)
    accuracy = SourceAccuracy.of(labels, predictions, ("0", "90", "180", "270"))
    assert accuracy is not None
    assert accuracy.class_order is not None
    assert accuracy.permuted is not None
    assert accuracy.doubt == accuracy.class_order
    assert (
        f"{100 * accuracy.permuted:.0f} % right with the classes in another order: {sentence} Name "
        in accuracy.class_order
    )


def test_many_exchanges_are_counted() -> None:
    labels = np.random.default_rng(1).integers(0, 20, 4000)
    names = [f"c{index}" for index in range(20)]
    accuracy = SourceAccuracy.of(labels, labels ^ 1, names)
    assert accuracy is not None
    assert "seem exchanged, and 7 more. Name" in str(accuracy.class_order)
    assert str(accuracy.class_order).count("seem exchanged") == 3


def imbalanced(classes: int, share: float, seed: int, rows: int = 400) -> tuple[np.ndarray, ...]:
    """Return probabilities and labels drawn from them: the first class is predicted everywhere."""
    rng = np.random.default_rng(seed)
    rest = np.geomspace(1, 0.05, classes - 1)
    z = np.log([share, *((1 - share) * rest / rest.sum())]) + 0.3 * rng.normal(size=(rows, classes))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return p, (rng.random(rows)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=classes - 1)


class TestColumnsInTheSameOrder:
    """Ranks are doubted, and the columns of frequent and rare classes are not."""

    @pytest.mark.parametrize(("classes", "share"), [(2, 0.75), (2, 0.99), (3, 0.97), (4, 0.9)])
    @pytest.mark.parametrize("ordered", ["both", "target"])
    def test_tables_and_arrays(
        self, classes: int, share: float, ordered: str, tmp_path: Path
    ) -> None:
        s, y = imbalanced(classes, share if ordered == "both" else 0.4, 1)
        t, _ = imbalanced(classes, share, 2)
        ranks = [np.sort(rows, axis=1)[:, ::-1] for rows in (s, t)]
        in_turn = np.arange(len(y)) % classes  # labels that ranks do not know
        for source, labels, target, doubted in (
            (s, y, t, ordered == "target" and classes > 2),
            (ranks[0], in_turn, ranks[1], True),
        ):
            np.savez(tmp_path / "s.npz", probabilities=source, y=labels)
            np.savez(tmp_path / "t.npz", probabilities=target)
            done = covcal("extract", "s.npz", "t.npz", "-f", cwd=tmp_path).require_success()
            assert ("like ranks" in done.err) == doubted
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                Calibrator("none").fit(np.log(source), labels, np.log(target))
            assert any("like ranks" in str(one.message) for one in caught) == doubted

    def test_a_model(self, tmp_path: Path) -> None:
        """The model prints its inputs, so these decide."""
        model = Graph([node("Gemm", "x wk bk", "y")], constants=IDENTITY, shape=("N", 4))
        path = model.save(tmp_path)
        p, y = imbalanced(4, 0.9, 1)
        for x, labels, doubted in ((p, y, False), (np.sort(p)[:, ::-1], np.arange(400) % 4, True)):
            np.savez(tmp_path / "s.npz", x=np.log(x).astype(np.float32), y=labels)
            np.savez(tmp_path / "t.npz", x=np.log(x[::2]).astype(np.float32))
            done = covcal("extract", path, "s.npz", "t.npz", "-f", cwd=tmp_path).require_success()
            assert ("like ranks" in done.err) == doubted
