"""What outputs are shows in all rows, in whatever batches they come."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logit, softmax

from covcal_cli.maths.output_form import Form, OutputEvidence, log_probabilities

Array = NDArray[Any]
N = 400


def logits(k: int) -> Array:
    return 2 * np.random.default_rng(k).normal(size=(N, k))


def forest(k: int) -> Array:
    """A sure row comes first, as float32 sums of leaves print it."""
    p: Array = softmax(logits(k), axis=1)
    p[0] = 0
    p[0, :2] = 1 + 4e-7, -4e-7
    return p


def failed(k: int) -> Array:
    p: Array = softmax(logits(k), axis=1)
    p[N // 2] = 0
    return p


def some_rows(k: int) -> Array:
    return np.where((np.arange(N) % 5 == 0)[:, None], softmax(logits(k), axis=1), logits(k))


def cosines(k: int) -> Array:
    return np.random.default_rng(k).uniform(0.1, 0.4, size=(N, k))


def centred(k: int) -> Array:
    z = logits(k)
    return np.asarray(z - z.mean(axis=1, keepdims=True))


def votes(trees: int) -> Array:
    return np.random.default_rng(0).multinomial(trees, [0.5, 0.3, 0.2], N)


MADE: dict[str, tuple[Array, Form]] = {
    "logits": (logits(4), "logits"),
    "one logit": (logits(1), "logits"),
    "log-probabilities": (np.log(softmax(logits(4), axis=1)), "logits"),
    "probabilities": (softmax(logits(4), axis=1), "probabilities"),
    "of a forest": (forest(3), "probabilities"),
    "of a binary forest": (forest(2), "probabilities"),
    "half precision": (softmax(logits(50), axis=1).astype(np.float16), "probabilities"),
    "answers alone": (np.eye(3)[np.arange(N) % 3], "probabilities"),
    "long float32 sums": (softmax(logits(2), axis=1) * (1 + 3e-4), "probabilities"),
    "tenths": (softmax(logits(4), axis=1).round(1), "probabilities"),
    "hundredths of many classes": (softmax(2 * logits(40), axis=1).round(2), "probabilities"),
    "p + 1": (softmax(logits(4), axis=1) + 1, "shares"),
    "p + 0.5, rounded": ((softmax(logits(4), axis=1) + 0.5).round(2), "shares"),
    "percentages": (100 * softmax(logits(4), axis=1), "percentages"),
    "whole percentages": ((100 * softmax(logits(9), axis=1)).round(), "percentages"),
    "votes of 100": (votes(100), "percentages"),
    "votes of 3": (votes(3), "shares"),
    "votes of 500": (votes(500), "shares"),
    "sums of 20 trees' probabilities": (20 * softmax(logits(5), axis=1), "shares"),
    "halves": (0.5 * softmax(logits(5), axis=1), "shares"),
    "0.9 p": (0.9 * softmax(logits(5), axis=1), "shares"),
    "scores from 0 to 10": ((10 * softmax(logits(4), axis=1)).round(1), "shares"),
    "8 bits": (np.floor(256 * softmax(logits(10), axis=1)).clip(0, 255), "shares"),
    "8 bits of two classes": ((255 * softmax(logits(2), axis=1)).round(), "shares"),
    "signed 8 bits": (np.floor(256 * softmax(logits(7), axis=1)).clip(0, 255) - 128, "shares"),
    "signed 8 bits of two classes": ((255 * softmax(logits(2), axis=1)).round() - 128, "shares"),
    "16 bits": ((65535 * softmax(logits(3), axis=1)).round(), "shares"),
    "probabilities less 1": (softmax(logits(4), axis=1) - 1, "shares"),
    "probabilities less 1 of two classes": (softmax(logits(2), axis=1) - 1, "shares"),
    "hundredths less 1": (softmax(logits(3), axis=1).round(2) - 1, "shares"),
    "percentages less 100": (100 * softmax(logits(5), axis=1) - 100, "shares"),
    "votes less their number": (votes(50) - 50.0, "shares"),
    "shares from -1 to 1": (2 * softmax(logits(4), axis=1) - 1, "shares"),
    "negated percentages": (-100 * softmax(logits(4), axis=1), "reversed"),
    "negated votes": (-votes(7), "reversed"),
    "negated halves": (-0.5 * softmax(logits(5), axis=1), "reversed"),
    "complements": (1 - softmax(logits(3), axis=1), "reversed"),
    "complements of many classes": (1 - softmax(2 * logits(100), axis=1), "reversed"),
    "rounded complements": (1 - softmax(logits(10), axis=1).round(2), "reversed"),
    "complements of votes": (20.0 - votes(20), "reversed"),
    "complements of percentages": (100 - 100 * softmax(logits(4), axis=1), "reversed"),
    "negated log-probabilities": (-np.log(softmax(logits(2), axis=1)), "reversed"),
    "rounded -log p": (-np.log(softmax(logits(6), axis=1)).round(2), "reversed"),
    "ranks from 1": (logits(5).argsort().argsort() + 1, "reversed"),
    "ranks from 0": (logits(3).argsort().argsort(), "reversed"),
    "unsure votes": (np.random.default_rng(0).multinomial(30, [0.4, 0.3, 0.3], N), "shares"),
    "probabilities less 1/K": (softmax(logits(3), axis=1) - 1 / 3, "shares"),
    "log10 p": (np.log10(softmax(logits(4), axis=1)), "reversed"),
    "log2 p of two classes": (np.log2(softmax(logits(2), axis=1)), "reversed"),
    "-10 log10 p": (-10 * np.log10(softmax(logits(4), axis=1)), "reversed"),
    "log odds": (logit(softmax(logits(3), axis=1)), "reversed"),
    "log p of answers alone": (np.log(np.maximum(np.eye(3)[np.arange(N) % 3], 1e-38)), "logits"),
    "centred logits": (centred(5), "logits"),
    "centred logits of two classes": (centred(2), "logits"),
    "whole logits": (logits(4).round(), "logits"),
    "whole centred logits of two classes": (centred(2).round(), "logits"),
    "logits with an offset": (centred(5) + 1e6, "logits"),
    "logits with a small offset": (centred(5) + 40, "logits"),
    "logits with an offset below 0": (centred(5) - 1e6, "logits"),
    "logits with a small offset below 0": (centred(5) - 40, "logits"),
    "uneven centred logits": (centred(5) - 1, "logits"),
    "rounded log-probabilities": (np.log(softmax(0.1 * logits(2), axis=1)).round(1), "logits"),
    "whole logits with an offset": (centred(2).round() + 128, "logits"),
    "linear units": (np.maximum(logits(4), 0), "logits"),
    "8 bits of logits": ((16 * logits(6)).round().clip(-128, 127) + 128, "logits"),
    "signed 8 bits of logits": ((16 * logits(6)).round().clip(-128, 127), "logits"),
    "clipped": (softmax(2 * logits(10), axis=1).clip(0.01, 0.99), "clipped"),
    "clipped above": (softmax(4 * logits(3), axis=1).clip(0, 0.9), "clipped"),
    "one failed row": (failed(4), "mixed"),
    "a fifth of the rows": (some_rows(4), "mixed"),
    "sigmoids": (expit(logits(4)), "bounded"),
    "sigmoids with two decimals": (expit(logits(4)).round(2), "bounded"),
    "cosines": (cosines(5), "bounded"),
    "one column": (expit(logits(1)), "bounded"),
    "multi-hot": ((expit(logits(4)) > 0.5).astype(float), "bounded"),
}  # fmt: skip


def seen(values: Array, batch: int) -> OutputEvidence:
    evidence = OutputEvidence()
    for start in range(0, len(values), batch):
        evidence.add(values[start : start + batch])
    return evidence


@pytest.mark.parametrize("name", MADE)
def test_the_form_is_that_of_all_rows_in_any_batches_and_order(name: str) -> None:
    """Whether they come at once, or one by one at first and then in batches that grow."""
    values, form = MADE[name]
    for rows in (values, values[::-1]):
        assert seen(rows, N).form == form
        evidence = OutputEvidence()
        for batch in np.split(rows, [1, 2, 3, 4, 11, 18, 60, N - 1]):
            evidence.add(batch)
        assert evidence.form == form


@pytest.mark.parametrize("scale", [0.999, 1.04])
def test_a_last_row_that_is_no_distribution_counts(scale: float) -> None:
    values = softmax(logits(4), axis=1)
    values[-1] *= 1 + 10 * (scale - 1)
    evidence = seen(values, 50)
    assert (evidence.form == "probabilities") == (scale == 0.999)
    if scale != 0.999:
        row, total = evidence.first_off or (-1, 0.0)
        assert row == N - 1
        assert total == pytest.approx(1.4)


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_few_rows_of_one_sum_may_be_logits(rows: int) -> None:
    assert seen(votes(50)[:rows], 64).form == ("shares" if rows > 3 else "logits")


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("probabilities", "every row sums to 1, as probabilities do"),
        ("percentages", "every row sums to 100, as percentages do"),
        ("votes of 500", "every row sums to 500, as votes of 500 trees do"),
        ("0.9 p", "every row sums to about 0.9, like probabilities times 0.9"),
        ("scores from 0 to 10", "every row sums to about 10, like probabilities times 10"),
        ("8 bits", "every row sums to about 255, as quantised scores from 0 to 255 do"),
        ("16 bits", "every row sums to about 65535, as quantised scores from 0 to 65535 do"),
        ("signed 8 bits", "quantised scores from -128 to 127"),
        (
            "probabilities less 1",
            "if 1 is added to each value, every row sums to 1, as shifted probabilities do",
        ),
        (
            "votes less their number",
            "if 50 is added to each value, every row sums to 50, as shifted probabilities do",
        ),
        (
            "negated percentages",
            "above 0 and every row sums to about -100, as negated probabilities do",
        ),
        (
            "complements",
            "to about 2, so each value may be 1 minus a probability",
        ),
        (
            "complements of votes",
            "so each value may be 20 minus a probability",
        ),
        (
            "rounded -log p",
            "the values seem to be -log p of probabilities p",
        ),
        (
            "log10 p",
            "seem to be log10 p of probabilities p",
        ),
        ("log odds", "the values seem to be log(p / (1 - p)) of probabilities p"),
        ("ranks from 0", "every row holds the ranks 0 to 2, which do not show the confidence"),
        ("one failed row", "399 of 400 rows sum to 1, as probabilities do"),
        ("sigmoids", "all outputs of 400 rows lie between 0 and 1 and rows do not sum to 1"),
    ],
)
def test_the_fact_says_what_the_rows_show(name: str, fact: str) -> None:
    assert seen(MADE[name][0], 64).fact.endswith(fact)


class TestIncompleteRows:
    """A language model spends some probability on answers of no class."""

    P = softmax(logits(4), axis=1)
    LOST = np.random.default_rng(1).beta(1.5, 12, N)[:, None]

    @pytest.mark.parametrize(
        ("lost", "decimals"), [(0.05, 4), (0.05, 16), (1, 2), (1, 4), (1, 16), (5, 2), (5, 16)]
    )
    def test_they_are_noticed(self, lost: float, decimals: int) -> None:
        mass = 1 - np.minimum(0.9, lost * self.LOST)
        evidence = seen((self.P * mass).round(decimals), 7)
        assert evidence.is_incomplete
        assert evidence.form in ("bounded", "mixed", "probabilities")
        assert evidence.mean_sum == pytest.approx(mass.mean(), abs=1e-3)

    def test_slightly_clipped_probabilities_are_not_shifted(self) -> None:
        """Their sums are 1 up to rounding, so only the division by the sum changes them."""
        evidence = seen(softmax(2 * logits(3), axis=1).clip(0.005, 1), 64)
        assert (evidence.form, evidence.lowest) == ("probabilities", 0.0)

    def test_damaged_rows_and_other_outputs_are_not(self) -> None:
        damaged = self.P.copy()
        damaged[:100] *= 0.9
        for values in (damaged, failed(4), cosines(5), expit(logits(4)), self.P, self.P[:, :1]):
            assert not seen(values, 64).is_incomplete


class TestDoubts:
    """What users should look into is a sentence each."""

    @pytest.mark.parametrize("width", [2, 3, 10])
    @pytest.mark.parametrize("order", ["falling", "rising", "mixed"])
    @pytest.mark.parametrize("kind", ["probabilities", "logits"])
    def test_columns_of_the_same_order_may_be_ranks(
        self, kind: str, width: int, order: str
    ) -> None:
        values = np.sort(logits(width), axis=1)[:, :: 1 if order == "rising" else -1]
        if order == "mixed":
            values = np.roll(values, 1, axis=1)
        values = softmax(values, axis=1) if kind == "probabilities" else values
        doubt = seen(values, 7).doubt_on_order or ""
        assert doubt.startswith("the columns look like ranks, because the values of all 400 rows")
        values[:4] = values[:4, ::-1]
        doubt = seen(values, 7).doubt_on_order or ""
        assert ("the values of 396 of 400 rows" in doubt) == (width > 2)

    def test_rows_of_equal_values_are_in_no_order(self) -> None:
        assert not seen(np.zeros((N, 4)), 64).doubts()

    @pytest.mark.parametrize("k", [3, 10])
    def test_the_softmax_of_probabilities_is_noticed(self, k: int) -> None:
        once = softmax(4 * logits(k), axis=1)
        (doubt,) = seen(softmax(once, axis=1), 64).doubts()
        assert doubt.endswith("check the model's last layers")
        assert not seen(once, 64).doubts()
        assert not seen(softmax(0.1 * logits(k), axis=1), 64).doubts()

    @pytest.mark.parametrize("extra", ["largest", "label", "row number", "mask", "class"])
    @pytest.mark.parametrize("is_first", [False, True])
    def test_a_column_that_may_be_no_class(self, extra: str, is_first: bool) -> None:
        z = logits(4)
        column = {
            "largest": z.max(axis=1),
            "label": np.arange(N) % 4,
            "row number": np.arange(N),
            "mask": np.full(N, -1e9),
            "class": 2 * np.random.default_rng(0).normal(size=N),
        }[extra]
        rows = np.column_stack([column, z] if is_first else [z, column])
        doubts = " ".join(seen(rows, 70).doubts())
        place = "first" if is_first else "last"
        assert (f"the {place} column" in doubts) == (extra not in ("mask", "class"))

    def test_a_column_beside_rows_of_one_sum_may_be_no_class(self) -> None:
        shares = softmax(logits(4), axis=1)
        others = (np.full(N, 0.5), shares.max(axis=1), shares.sum(axis=1), np.arange(N) / N)
        for place, other in itertools.product(range(5), others):
            for scale in (1, 100):
                doubts = seen(np.insert(scale * shares, place, scale * other, axis=1), 70).doubts()
                assert f"without column {place + 1} of 5, all rows have the same" in " ".join(
                    doubts
                )
        for rows in (np.insert(shares, 2, 0.0, axis=1), np.insert(votes(9), 2, 0, axis=1), shares):
            assert "same sum" not in " ".join(seen(rows, 70).doubts())

    def test_logits_of_one_sum_are_doubted(self) -> None:
        assert "sums to about 12" in seen(centred(4) + 3, N).doubts()[0]
        assert not seen(centred(4), N).doubts()
        assert not seen(logits(4) + 1e8, N).doubts()
        pairs = logits(2)[:, :1] * [-1, 1]
        assert "the two outputs are z and -z" in seen(pairs, N).doubts()[0]

    @pytest.mark.parametrize(
        ("offset", "kind", "step"),
        [(1e8, "f4", "8"), (1e6, "f4", "0.0625"), (1e3, "f2", "0.5"), (1e16, "f8", "2")],
    )
    def test_a_common_offset_that_took_the_digits_is_named(
        self, offset: float, kind: str, step: str
    ) -> None:
        lost = (logits(4) + offset).astype(kind)
        assert f"stored in steps of {step}:" in seen(lost, 50).doubts()[0]
        kept = {"f4": 1e4, "f2": 20.0, "f8": 1e9}[kind]
        for others in (
            (logits(4) + kept).astype(kind),
            (1e6 * logits(4)).astype("f4"),
            votes(1500),
        ):
            assert "apart" not in " ".join(seen(others, 50).doubts())

    def test_one_column_that_is_always_likely_may_be_the_confidence(self) -> None:
        p = expit(logits(1))
        (doubt,) = seen(np.maximum(p, 1 - p), 64).doubts()
        assert doubt.startswith("the only output is at least 0.5 in all 400 rows")
        assert not seen(p, 64).doubts()
        (doubt,) = seen(100 * p, 64).doubts()
        assert doubt.startswith("the only output is at least 0 in all 400 rows, so the same class")

    def test_outputs_between_minus_1_and_1_are_doubted(self) -> None:
        for limit, values in ((1, np.tanh(logits(4))), (0.5, softmax(logits(2), axis=1) - 0.5)):
            (doubt,) = seen(values, 64).doubts()
            assert doubt.startswith(f"all outputs of 400 rows lie between -{limit} and {limit}, ")
        assert not seen(0.1 * logits(4), 64).doubts()

    @pytest.mark.parametrize("name", ["8 bits of logits", "linear units"])
    def test_logits_without_negative_values_are_doubted(self, name: str) -> None:
        (doubt,) = seen(MADE[name][0], 64).doubts()
        assert doubt.startswith("all outputs of 400 rows are at least 0")

    def test_votes_that_differ_in_number_are_doubted(self) -> None:
        trees = np.random.default_rng(0).integers(150, 220, N)
        values = np.random.default_rng(1).multinomial(trees, softmax(logits(3), axis=1))
        (doubt,) = seen(values, 64).doubts()
        assert "are at least 0 and all are whole numbers" in doubt


def test_nothing_seen_is_taken_for_logits() -> None:
    assert OutputEvidence().form == "logits"


def test_nothing_is_subtracted_from_probabilities_whose_sums_are_rounded() -> None:
    for width in (2, 3, 100):
        p = softmax(logits(width), axis=1).astype(np.float32)
        assert seen(p * np.float32(1 + 3e-4), N).lowest == 0


def test_the_number_added_to_probabilities_is_found() -> None:
    """p + 1 and the like, of any number of classes."""
    for width in (2, 3, 100):
        p = softmax(logits(width), axis=1)
        for added in (0.5, 1.0, 3.0):
            evidence = seen((p + added).astype(np.float32), 50)
            assert evidence.lowest == added
            assert "subtracted from each value, every row sums to 1" in evidence.fact
            np.testing.assert_allclose(log_probabilities(p + added, added), np.log(p), atol=1e-3)


@pytest.mark.parametrize(("unit", "lowest"), [(1, 0), (100, 0), (256, -128)])
def test_logarithms_are_those_of_rows_that_sum_to_1(unit: float, lowest: float) -> None:
    p = softmax(logits(4), axis=1)
    np.testing.assert_allclose(log_probabilities(unit * p + lowest, lowest), np.log(p), rtol=1e-9)
    one = expit(logits(1))
    np.testing.assert_allclose(np.exp(log_probabilities(one)), np.hstack([1 - one, one]))
    assert np.isfinite(log_probabilities(np.array([[1 + 4e-7, -4e-7]]))).all()
