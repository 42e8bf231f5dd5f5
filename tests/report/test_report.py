"""The report page: self-contained, true to the numbers, honest in words, readable on a phone."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from covcal_cli.evaluate.claims import MeanGap
from covcal_cli.evaluate.evaluate import EvaluateSettings
from covcal_cli.forecast import source_accuracy
from covcal_cli.formats.features import FeatureFile
from covcal_cli.records import write_document
from covcal_cli.report.report import report
from covcal_cli.report.verdict import measured_action
from tests import calibrating
from tests.browser import Browser, needs_browser
from tests.cli_runner import covcal, printed_json
from tests.made_files import (
    Arrays,
    clusters_domain,
    edited,
    made_domain,
    write_adapted,
    write_features,
)

RESAMPLES = 100


class Page(HTMLParser):
    """What a page shows and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.hidden = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.hidden = self.hidden or tag == "style"
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "data")]

    def handle_endtag(self, tag: str) -> None:
        self.hidden = self.hidden and tag != "style"

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def calibrated(
    folder: Path, method: str = "temp", name: str = "cal.json", **changes: object
) -> Path:
    """Fit a calibration of features.h5, and edit it where asked to."""
    return calibrating.calibrated(folder / "features.h5", method, name, **changes)


def reported(folder: Path, *arguments: str) -> Page:
    """Report with few resamples, unless the arguments say otherwise."""
    few = ("--bootstrap", RESAMPLES)
    covcal("report", "features.h5", *few, *arguments, cwd=folder).require_success()
    return Page(folder / "report.html")


def shown_commands(folder: Path) -> list[list[str]]:
    """The words of the commands on report.html."""
    shown = re.search(r"<pre>(.*?)</pre>", (folder / "report.html").read_text(), re.DOTALL)
    assert shown is not None
    return [shlex.split(line) for line in unescape(shown[1]).splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = (300, 500, 1500)
    source, target = clusters_domain("source"), clusters_domain("target", moved=0.8, sizes=sizes)
    write_features(tmp_path / "features.h5", source=source, target=target)
    return tmp_path


def test_the_page_loads_nothing_and_runs_nothing(folder: Path) -> None:
    page = reported(folder, "-c", str(calibrated(folder, "auto")))
    assert page.loads == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in (folder / "report.html").read_text()


def test_its_numbers_are_those_of_evaluate(folder: Path) -> None:
    document = calibrated(folder)
    page = reported(folder, "-c", str(document))
    metrics = printed_json("evaluate", "features.h5", "-c", document, cwd=folder)["metrics"]
    for name in ("none", "temp"):
        assert f"{name}: ECE {100 * metrics[name]['ece']:.1f} %" in page.words
        for metric in ("accuracy", "mean_confidence", "smooth_ece", "classwise_ece"):
            assert f"{100 * metrics[name][metric]:.1f} %" in page.words
        assert f"{metrics[name]['brier']:.4f}" in page.words


def test_every_filled_bin_is_drawn_and_no_other(folder: Path) -> None:
    document = calibrated(folder)
    reported(folder, "-c", str(document), "--bins", "10")
    arguments = ("features.h5", "-c", document, "--bins", 10)
    bins = printed_json("evaluate", *arguments, cwd=folder)["bins"]["calibrations"]
    text = (folder / "report.html").read_text()
    drawn = [int(rows) for rows in re.findall(r"<g><title>[^<]*, (\d+) rows</title>", text)]
    assert drawn == [rows for name in ("none", "temp") for rows in bins[name]["count"] if rows]


def test_texts_from_outside_are_escaped(tmp_path: Path) -> None:
    names = ["<b>cat</b>", 'dog & "hound"', "</table>"]
    write_features(
        tmp_path / "features.h5", class_names=names, attributes={"model_name": "<i>.onnx"}
    )
    page = reported(tmp_path, "-c", str(calibrated(tmp_path)))
    assert not {"b", "i"} & set(page.tags)
    for name in (*names, "<i>.onnx"):
        assert name in page.words


def honest_domain(n: int) -> Arrays:
    """A target of `n` test rows whose labels are drawn from the classifier's own probabilities."""
    target = made_domain("target", sizes=(300, 500, n), sharpness=1.0)
    noise = np.random.default_rng(3).gumbel(size=target["logits"].shape)
    target["labels"] = (target["logits"] + noise).argmax(axis=1).astype(np.int64)
    return target


def reported_on_classes(folder: Path, *, rows: int) -> Page:
    """Report on cats and dogs of which 3 % are dogs, and which a balanced source taught."""
    rng = np.random.default_rng(2)
    domains = []
    for name, share in (("source", 0.5), ("target", 0.03)):
        domain = made_domain(name, sizes=(300, 500, rows), classes=2)
        dogs = rng.random(800 + rows) < share
        odds = 2 * rng.normal(loc=np.where(dogs, 1.0, -1.0))  # exact where half of all are dogs
        domain["logits"] = np.stack([-odds / 2, odds / 2], axis=1).astype(np.float32)
        domains.append(domain | {"labels": dogs.astype(np.int64)})
    source, target = domains
    names = ["cat", "dog"]
    write_features(folder / "features.h5", source=source, target=target, class_names=names)
    return reported(folder, "-c", str(calibrated(folder, "none")))


class TestVerdict:
    """The words follow from the intervals."""

    def test_an_honest_confidence(self, tmp_path: Path) -> None:
        write_features(tmp_path / "features.h5", target=honest_domain(8_000))
        page = reported(tmp_path, "-c", str(calibrated(tmp_path, "none")))
        assert re.search(
            r"Use this confidence: the calibration error \(ECE\) is at most [012]\.\d points\.",
            page.words,
        )

    def test_an_improvement_that_is_not_enough(self, folder: Path) -> None:
        document = calibrated(folder)
        content = json.loads(document.read_text())
        stronger = 1.3 * content["temperatures"]["forecaster"]
        page = reported(folder, "-c", str(calibrated(folder, name="b.json", forecaster=stronger)))
        assert "Do not rely on the confidence: calibration improved it, but it is too" in page.words
        assert "the calibration has a better" in page.words
        # A proved gain of a hundredth of a point changes no advice.
        tiny = calibrated(folder, name="c.json", forecaster=1.001)
        page = reported(folder, "-c", str(tiny), "-f")
        assert "the calibration has a better" in page.words
        assert "Do not trust the confidence: it is too" in page.words

    def test_a_later_calibration_that_is_proved_better(self, folder: Path) -> None:
        """The verdict is about the first calibration, and names the better one."""
        harmful, fitted = calibrated(folder, name="a.json", forecaster=0.2), calibrated(folder)
        documents = ("-c", f"sharp={harmful}", "-c", f"fitted={fitted}")
        page = reported(folder, *documents)
        assert "On the same rows, fitted is better than sharp (ECE, Brier score, log loss)" in (
            page.words
        )
        page = reported(folder, *documents[2:], *documents[:2], "-f")
        assert "is better than" not in page.words

    def test_harm(self, folder: Path) -> None:
        """The confidence before calibration is wrong too."""
        page = reported(folder, "-c", str(calibrated(folder, forecaster=0.2)))
        assert "on average, and temp makes it worse." in page.words
        assert "the calibration has a worse" in page.words

    def test_harm_that_overlapping_intervals_would_hide(self, tmp_path: Path) -> None:
        """Rows that are judged twice tell a small harm apart."""
        target = honest_domain(4000)
        write_features(tmp_path / "features.h5", target=target)
        page = reported(tmp_path, "-c", str(calibrated(tmp_path, forecaster=1.3)))
        content = printed_json(
            *("evaluate", "features.h5", "-c", "cal.json", "--bootstrap", RESAMPLES), cwd=tmp_path
        )
        before, after = (content["intervals"][name]["brier"] for name in ("none", "temp"))
        assert after[0] < before[1]
        assert "Do not use temp here: it makes the confidence worse." in page.words
        shown = {one["metric"]: one for one in content["differences"]}
        assert shown["brier"]["low"] > 0
        for metric, name in (("brier", "Brier score"), ("nll", "Negative log-likelihood")):
            value, low, high = (f"{shown[metric][key]:+.4f}" for key in ("value", "low", "high"))
            assert f"{name} {value} {low} to {high} worse" in page.words

    def test_a_proved_harm_that_is_too_small(self, tmp_path: Path) -> None:
        """The log loss and the ECE are proved worse by less than 0.005 and one point."""
        write_features(tmp_path / "features.h5", target=honest_domain(20_000))
        document = calibrated(tmp_path, forecaster=1.1)
        page = reported(tmp_path, "-c", str(document))
        assert "Use this confidence: " in page.words
        assert " points. temp makes the confidence worse, but too little to matter." in page.words
        assert "has a worse ECE and log loss, but the change is too small to matter." in page.words
        shown = covcal("evaluate", "-c", document, "--bootstrap", 100, cwd=tmp_path).out
        assert "significantly worse (log loss, ECE), but the change is too small to matter" in shown

    def test_no_difference_is_no_verdict(self, tmp_path: Path) -> None:
        write_features(tmp_path / "features.h5", target=honest_domain(300))
        page = reported(tmp_path, "-c", str(calibrated(tmp_path, forecaster=1.01)))
        assert "the calibration is not significantly better or worse" in page.words

    def test_a_class_that_an_average_hides(self, tmp_path: Path) -> None:
        """A rare class is promised at the rate of a balanced source: on average all is well."""
        page = reported_on_classes(tmp_path, rows=8000)
        where = "where dog is predicted (too high), or where cat is predicted (too low)"
        assert f"Do not trust the confidence {where}." in page.words
        assert re.search(
            r"Where dog is predicted, the confidence is 7\d % and the accuracy is 13 %", page.words
        )

    def test_a_class_of_few_rows_is_not_judged(self, tmp_path: Path) -> None:
        """The page says that the class could not be judged."""
        page = reported_on_classes(tmp_path, rows=20)
        assert "where dog is predicted" not in page.words
        assert "too few rows for a verdict" in page.words

    def test_what_cancels_out_is_said(self, tmp_path: Path) -> None:
        """Too much where the classifier is sure and too little where it is not."""
        target = honest_domain(8000)
        rows = np.arange(8800)
        target["logits"][rows % 2 == 0] *= 1.6
        target["logits"][rows % 2 == 1] *= 0.6
        write_features(tmp_path / "features.h5", target=target)
        page = reported(tmp_path, "-c", str(calibrated(tmp_path, "none")))
        ece = re.search(r"the calibration error \(ECE\) is (\d+\.\d) to \d+\.\d points", page.words)
        assert ece is not None
        assert float(ece[1]) > 1
        assert re.search(
            r"The confidence may be right|On average the confidence is too \w+ by [01]\.\d",
            page.words,
        )

    def test_without_intervals_nothing_is_said_of_chance(self, folder: Path) -> None:
        page = reported(folder, "-c", str(calibrated(folder)), "--bootstrap", "0")
        assert "points, without an interval." in page.words
        assert "On the same rows" not in page.words

    def test_few_rows_leave_room(self, tmp_path: Path) -> None:
        target = clusters_domain("target", sizes=(300, 500, 40))
        write_features(tmp_path / "features.h5", source=clusters_domain("source"), target=target)
        page = reported(tmp_path, "-c", str(calibrated(tmp_path)))
        assert re.search(
            r"Measure all 840 labelled rows with --split all: the confidence may be off by up to "
            r"\d+ points, and 40 rows are too few to prove a smaller error",
            page.words,
        )

    @pytest.mark.parametrize(
        ("ece", "tone", "words"),
        [
            ((0.002, 0.03), "good", "Use this confidence"),
            ((0.02, 0.04), "good", "is at most 4.0 points"),
            ((0.02, 0.11), "mixed", "the calibration error (ECE) is 2.0 to 11 points, and 576"),
            ((0.06, 0.11), "bad", "it has a calibration error (ECE) of 6.0 to 11 points"),
        ],
    )
    def test_a_small_error_is_no_reason_for_distrust(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ece: tuple[float, float],
        tone: str,
        words: str,
    ) -> None:
        """If the mean confidence may be right, the interval of the ECE decides."""
        monkeypatch.setattr(MeanGap, "of", lambda *_: MeanGap(0.0, -0.05, 0.05))
        evaluation = Mock(
            level=0.95, n=576, intervals={"none": {"ece": ece}}, classes={}, in_all_splits=0
        )
        evaluation.metrics, evaluation.judged = {"none": Mock()}, evaluation
        evaluation.difference.return_value = None
        found = measured_action(evaluation, "none")
        assert found[0] == tone
        assert words in found[1]

    def test_without_labels_nothing_is_called_measured(self, tmp_path: Path) -> None:
        target = clusters_domain("target", moved=0.8)
        target["labels"][:] = -1
        write_features(tmp_path / "features.h5", source=clusters_domain("source"), target=target)
        path = calibrated(tmp_path, "auto")
        page = reported(tmp_path, "-c", str(path))
        assert re.search(
            r"(Use the calibration, and label some rows when you can|Label 50 rows first)",
            page.words,
        )
        assert "nothing here is measured" in page.words
        # An offset can make another class the most probable, but never changes the label.
        assert "use the columns label" not in page.words
        content = json.loads(path.read_text()) | {"confidence_offset": 0.1}
        write_document(content, path, force=True)
        page = reported(tmp_path, "-c", str(path), "-f")
        assert "the predicted class may no longer be the most probable class" in page.words
        assert page.tags.count("figure") == 1
        # The text beside the diagram says which confidence is outside the range.
        low, high = (
            float(end) for end in re.findall(r"accuracy \((\d+) to (\d+) %\)", page.words)[0]
        )
        means = re.findall(r"confidence (before|with \S+) (\d+) %", page.words)
        assert means
        for name, mean in means:
            outside = re.search(
                rf"The confidence {name}( calibration)? is outside the grey bar", page.words
            )
            assert (outside is not None) == (not low <= float(mean) <= high)
        assert "estimated accuracy" in page.words
        assert "covcal uses the first estimate. The estimate uses 800 target" in page.words

    def test_the_estimated_accuracy_has_its_range(self, tmp_path: Path) -> None:
        """In whole percent: the estimate is not known better."""
        target = clusters_domain("target", moved=0.8)
        target["labels"][:] = -1
        write_features(tmp_path / "features.h5", source=clusters_domain("source"), target=target)
        page = reported(tmp_path, "-c", str(calibrated(tmp_path)))
        best = printed_json("estimate", "features.h5", cwd=tmp_path)["estimates"][0]
        assert (
            f"Estimated accuracy on the target: {100 * best['accuracy']:.0f} % (between "
            f"{100 * best['low']:.0f} and {100 * best['high']:.0f} %). The estimate uses 800 "
            "target train and validation rows, without labels."
        ) in page.words


def test_guards_candidates_and_provenance_are_shown(folder: Path) -> None:
    document = calibrated(folder, "auto")
    page = reported(folder, "-c", str(document))
    content = json.loads(document.read_text())
    assert content["reason"] in page.words
    for guard in content["guards"]:
        assert guard["sentence"] in page.words
    for candidate in content["candidates"]:
        assert candidate["why"] in page.words
    assert "Estimates of the target accuracy" in page.words
    assert content["inputs"][0]["sha256"] in page.words
    assert content["model"]["sha256"] in page.words


def test_the_estimates_are_those_of_the_first_calibration(folder: Path) -> None:
    """Its prior, its limit of weights and its seed, as `covcal estimate -c` takes them."""
    asked = ("--target-prior", "uniform", "--max-weight", 5)
    arguments = ("features.h5", "--method", "cot", *asked, "-o", "cal.json")
    covcal("calibrate", *arguments, cwd=folder).require_success()
    page = reported(folder, "-c", "cal.json")
    found = printed_json("estimate", "features.h5", *asked, cwd=folder)["estimates"]
    plain = printed_json("estimate", "features.h5", cwd=folder)["estimates"]

    def shown(one: dict[str, Any]) -> str:
        numbers = (f"{100 * one[name]:.1f} %" for name in ("accuracy", "low", "high"))
        return "{} {} {} to {}".format(one["name"], *numbers)

    for one, other in zip(found, plain, strict=True):
        assert shown(one) in page.words
        if one["name"] in ("cot", "weighted"):
            assert shown(other) not in page.words


@pytest.mark.parametrize(
    "options",
    [
        ("--seed", "3", "--bins", "10"),
        ("--split", "validation", "--bootstrap", "0"),
    ],
)
def test_the_commands_on_the_page_make_the_page_again(
    options: tuple[str, ...], folder: Path
) -> None:
    calibrated(folder, "cot", "one.json")
    calibrated(folder, "label-shift", "two.json")
    reported(folder, "-c", "one.json", "-c", "two.json", *options)
    before = (folder / "report.html").read_bytes()
    commands = shown_commands(folder)
    assert [command[1] for command in commands] == [
        "extract",
        "calibrate",
        "calibrate",
        "evaluate",
        "report",
    ]
    for name in ("one.json", "two.json", "report.html"):
        (folder / name).unlink()
    for command in commands[1:]:
        covcal(*command[1:], cwd=folder).require_success()
    assert (folder / "report.html").read_bytes() == before
    # What evaluate measures is what the page shows.
    content = printed_json(*commands[3][1:], cwd=folder)
    ece = content["metrics"]["none"]["ece"]
    assert f"none: ECE {100 * ece:.1f} %" in Page(folder / "report.html").words
    told = dict(pairwise(options))
    assert content["split"] == told.get("--split", "test")
    bootstrap = content["bootstrap"] or {"resamples": 0, "seed": 0}
    assert bootstrap["resamples"] == int(told.get("--bootstrap", RESAMPLES))
    assert bootstrap["seed"] == int(told.get("--seed", 0))


def test_the_commands_give_the_seed_of_the_extraction(folder: Path) -> None:
    """Of a features file, and of an adapted file, which has a seed of its own too."""
    write_features(folder / "features.h5", attributes={"seed": 3})
    reported(folder, "-c", str(calibrated(folder)))
    (extract, *_) = shown_commands(folder)
    assert extract[-2:] == ["--seed", "3"]
    (folder / "report.html").unlink()
    made = {"features_file": "features.h5", "preset": "fast", "members": "2"}
    seeds = {"extract_seed": 3, "seed": 5}
    write_adapted(folder / "features.h5", attributes={**made, **seeds})
    reported(folder, "-c", str(calibrated(folder, name="adapted.json")))
    (extract, adapt, *_) = shown_commands(folder)
    assert extract[-2:] == ["--seed", "3"]
    assert adapt[-2:] == ["--seed", "5"]


def test_the_commands_name_networks_that_were_given(trained: Path, folder: Path) -> None:
    shutil.copy(trained, folder / "adapted.h5")
    shutil.copy(trained.with_name("features.h5"), folder / "features.h5")
    arguments = ("adapted.h5", "--method", "fl+temp", "-o", "fl.json")
    covcal("calibrate", *arguments, cwd=folder).require_success()
    (folder / "adapted.h5").rename(folder / "moved.h5")
    reported(folder, "-c", "fl.json", "--networks", "moved.h5")
    for command in shown_commands(folder)[-2:]:
        assert "--networks moved.h5" in " ".join(command)


def test_the_commands_give_the_names_of_calibrations(folder: Path) -> None:
    """A name of one's own, on the page and in the commands that lead to it."""
    calibrated(folder)
    page = reported(folder, "-c", "live now=cal.json", "-c", "cal.json")
    assert "After calibration (live now), the calibration error (ECE)" in page.words
    *_, evaluate, again = shown_commands(folder)
    for command in (evaluate, again):
        assert [one for one in command if "cal.json" in one] == ["live now=cal.json", "cal.json"]


def test_without_arguments_it_reports_on_what_cal_json_names(folder: Path) -> None:
    calibrated(folder)
    run = covcal("report", cwd=folder).require_success()
    assert re.search(
        r"Measured on 1500 labelled target rows. .* \d\d.\d % of these test rows right", run.out
    )
    assert "reporting on features.h5" in run.err


def without_source(features: Path) -> None:
    with edited(features) as file:
        del file["source"]


def without_source_labels(features: Path) -> None:
    with edited(features) as file:
        file["source/labels"][:] = -1


def with_target_test_rows_alone(features: Path) -> None:
    with edited(features) as file:
        file["target/split"][:] = 2


@pytest.mark.parametrize(
    "changed", [without_source, without_source_labels, with_target_test_rows_alone]
)
def test_what_has_too_few_rows_for_an_estimate_is_still_reported_on(
    changed: Callable[[Path], None], folder: Path
) -> None:
    document = calibrated(folder)
    changed(folder / "features.h5")
    page = reported(folder, "-c", str(document))
    assert "Measured on" in page.words
    assert "Estimates of the target accuracy" not in page.words


class TestRefusals:
    """Nothing is overwritten or half written."""

    @pytest.mark.parametrize("networks", ["features.h5", "missing.h5"])
    def test_networks_that_nothing_needs(self, networks: str, folder: Path) -> None:
        """Without an fl calibration the option is a mistake, as for evaluate."""
        arguments = ("features.h5", "-c", calibrated(folder), "--networks", networks)
        assert "no calibration uses it" in covcal("report", *arguments, cwd=folder).usage_error()
        assert not (folder / "report.html").exists()

    def test_a_file_that_is_damaged_where_estimates_read_it(self, folder: Path) -> None:
        """The page did without its estimates, as for too few rows, and said nothing."""
        document = calibrated(folder)
        with edited(folder / "features.h5") as file:
            file["source/logits"][-250] = np.nan
        run = covcal("report", "features.h5", "-c", document, cwd=folder)
        assert "/source/logits" in run.error_line()
        assert not (folder / "report.html").exists()

    def test_another_ending(self, folder: Path) -> None:
        arguments = ("features.h5", "-c", calibrated(folder), "-o", "report.pdf")
        assert "a name that ends in .html" in covcal("report", *arguments, cwd=folder).error_line()

    def test_a_calibration_of_another_model(self, folder: Path) -> None:
        document = calibrated(folder)
        write_features(folder / "features.h5", attributes={"model_sha256": "6" * 64})
        run = covcal("report", "features.h5", "-c", document, cwd=folder)
        assert "fit another calibration on this file" in run.error_line()
        assert not (folder / "report.html").exists()


# A window of its own is never narrower than 500 pixels, a frame is.
# What a reader of the page sees of its sizes, in JavaScript.
SEEN = """(() => {
  const every = (what) => [...document.querySelectorAll(what)];
  const size = (part) => parseFloat(getComputedStyle(part).fontSize);
  return {
    inner: innerWidth,
    scroll: document.documentElement.scrollWidth,
    figures: every("svg.diagram").map((figure) => figure.getBoundingClientRect().toJSON()),
    cut: every("svg.diagram text").filter((part) => {
      const [text, figure] = [part, part.closest("svg")].map((one) => one.getBoundingClientRect());
      return text.left < figure.left || text.right > figure.right || text.bottom > figure.bottom;
    }).map((part) => part.textContent),
    smallest: Math.min(...every("p, td, text").map(size)),
  };
})()"""


def test_files_may_be_named_by_strings(folder: Path) -> None:
    """As from Python; the page is the same as that of paths."""
    files = [folder / "features.h5", calibrated(folder)]
    report(files[0], files[1:], folder / "one.html", EvaluateSettings(resamples=20))
    report(str(files[0]), [str(files[1])], str(folder / "two.html"), EvaluateSettings(resamples=20))
    pages = [(folder / name).read_text().splitlines() for name in ("one.html", "two.html")]
    assert pages[0] == pages[1]


@pytest.mark.browser
@needs_browser
def test_a_browser_shows_it_whole(folder: Path, chromium: Browser) -> None:
    """No console error, no sideways scrolling, every figure within the window, no word cut off."""
    reported(
        folder, "-c", str(calibrated(folder, "auto")), "-c", str(calibrated(folder, name="t.json"))
    )
    page = (folder / "report.html").as_uri()
    tab = chromium.tab(390, 900)
    for width in (390, 1280):
        tab.resize(width, 900)
        tab.open(page)
        seen: dict[str, Any] = tab.value(SEEN)
        assert tab.complaints() == []
        assert set(tab.requests()) == {page}
        assert seen["inner"] == width
        assert seen["scroll"] <= width
        assert seen["smallest"] >= 11
        assert seen["cut"] == []
        assert len(seen["figures"]) == 3
        for figure in seen["figures"]:
            assert min(figure["width"], figure["height"]) > 200
            assert figure["right"] <= width


def test_it_states_how_the_classifier_does_on_its_own_data(folder: Path) -> None:
    """A reader of the page sees whether the model was read as it was trained."""
    calibrated(folder)
    covcal("report", "features.h5", "-o", "read.html", cwd=folder).require_success()
    with FeatureFile(folder / "features.h5") as file:
        accuracy = source_accuracy(file)
    assert accuracy is not None
    text = (folder / "read.html").read_text()
    assert f"The classifier gets {accuracy} right".replace(" %", "\N{NO-BREAK SPACE}%") in text


def test_rows_whose_label_is_not_the_likeliest_class_are_counted(
    small_files: Path, tmp_path: Path
) -> None:
    """An offset can make another class likelier than the label, which stays."""
    document = tmp_path / "cal.json"
    content = json.loads((small_files / "temp.json").read_text("utf-8"))
    offsets = [-3.0] + [0.0] * (len(content["classes"]) - 1)
    write_document(content | {"class_offsets": offsets}, document, force=True)
    asked = ("--split", "all", "--bootstrap", 0, "-f", "-o", tmp_path / "r.html")
    moved = covcal("report", small_files / "features.h5", "-c", document, *asked).require_success()
    measured = printed_json(
        "evaluate", small_files / "features.h5", "-c", document, "--split", "all"
    )
    metrics = next(values for name, values in measured["metrics"].items() if name != "none")
    count = round((1 - metrics["agreement"]) * metrics["n"])
    assert count > 0
    assert (
        f"In {count} of {metrics['n']} rows, the predicted class is no longer the most" in moved.out
    )
    plain = covcal("report", small_files / "features.h5", "-c", small_files / "temp.json", *asked)
    assert "no longer" not in plain.require_success().out
