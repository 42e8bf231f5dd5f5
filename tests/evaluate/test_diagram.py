"""The reliability diagram: as a picture, and as text for a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from covcal_cli.errors import CovcalError
from covcal_cli.evaluate import diagram
from covcal_cli.evaluate.bins import ReliabilityBins
from covcal_cli.evaluate.diagram import accuracy_above, draw_diagram, text_diagram
from covcal_cli.evaluate.metrics import LabelledRows, Metrics, MetricsAccumulator
from covcal_cli.maths.softmax import class_major, softmax
from tests.cli_runner import covcal
from tests.evaluate.made_bins import binned

OVER, UNDER = "#d55e00", "#0072b2"
STARTS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def bins_of(
    confidence: Sequence[float], correct: Sequence[bool], bins: int = 10
) -> ReliabilityBins:
    return binned(np.array(confidence), np.array(correct), bins)


def metrics_of(confidence: Sequence[float], correct: Sequence[bool], bins: int = 10) -> Metrics:
    """Return metrics of a two-class forecaster: the judged label has the confidence given."""
    values = np.array(confidence, dtype=np.float64)
    collected = MetricsAccumulator(bins, 2)
    with np.errstate(divide="ignore"):
        logs = np.log(np.stack([values, 1 - values], axis=1))
    labels = np.where(correct, 0, 1)
    collected.add(
        softmax(class_major(logs), 1.0), LabelledRows(np.zeros(len(values), np.int64), labels)
    )
    return collected.result()


def axes_of(metrics: dict[str, Metrics]) -> list[Any]:
    axes: list[Any] = diagram.figure_of(metrics, "title").axes
    return axes


def gaps(axes: Any, colour: str) -> list[Any]:
    """Return the gaps drawn in a colour: the patches with that edge and no face."""
    return [
        patch
        for patch in axes.patches
        if to_hex(patch.get_edgecolor()) == colour and patch.get_facecolor()[3] == 0
    ]


class TestFile:
    @pytest.mark.parametrize("kind", ["svg", "pdf"])
    def test_it_is_written_and_the_same_twice(self, tmp_path: Path, kind: str) -> None:
        """The picture is not empty, and has the same bytes twice, whatever the user's settings are.

        The letters of an SVG are stored as text, so they do not make the file large. No setting of
        the user is changed. test_demo.py has a .png.
        """
        (tmp_path / "matplotlibrc").write_text("font.size: 30\ntext.usetex: True\n")
        paths = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
        entry = metrics_of([0.25, 0.55, 0.95], [True, True, False])
        draw_diagram({"none": entry}, paths[0], title="three rows", force=False)
        with mpl.rc_context(fname=tmp_path / "matplotlibrc"):
            before = dict(mpl.rcParams)
            draw_diagram({"none": entry}, paths[1], title="three rows", force=False)
            assert dict(mpl.rcParams) == before
        first, second = (path.read_bytes() for path in paths)
        assert first.startswith(STARTS[kind])
        assert 10_000 < len(first) < 80_000
        assert first == second
        assert (b">accuracy above</text>" in first) == (kind == "svg")

    @pytest.mark.parametrize("name", ["r.gif", "r", "r.png.txt", "-"])
    def test_another_ending_is_refused(self, features: Path, name: str) -> None:
        """Any other ending is refused before the computation; the message names all endings."""
        line = covcal("evaluate", features, "--diagram", name, cwd=features.parent).error_line()
        assert line == f"{name}: a diagram ends in .png, .svg, .pdf"

    def test_an_existing_picture_stays(
        self, features: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without --force a picture is not replaced; with it, it is. The ending has any case."""
        monkeypatch.setattr(diagram, "figure_of", lambda *_: Figure(figsize=(1, 1)))
        path = features.with_name("R.PNG")
        path.write_text("old")
        assert "exists already" in covcal("evaluate", features, "--diagram", path).error_line()
        assert path.read_text() == "old"
        done = covcal("evaluate", features, "--diagram", path, "-f").require_success()
        assert f"wrote {path}" in done.err.splitlines()
        assert path.read_bytes().startswith(STARTS["png"])

    def test_nothing_partial_when_drawing_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error while drawing leaves no file."""
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", _fails)
        with pytest.raises(CovcalError, match="no space"):
            draw_diagram(
                {"none": metrics_of([0.9], [True])}, tmp_path / "r.png", title="", force=False
            )
        assert list(tmp_path.iterdir()) == []


def _fails(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


class TestReliabilityPanel:
    def test_an_empty_bin_draws_nothing(self) -> None:
        """Only bins with rows have a bar and a gap; none is drawn as perfect."""
        entry = metrics_of([0.25, 0.55, 0.95], [True, True, False])
        reliability = axes_of({"none": entry})[0]
        bars = [patch for patch in reliability.patches if patch.get_facecolor()[3] > 0]
        assert [round(bar.get_x(), 6) for bar in bars] == [0.2, 0.5, 0.9]
        assert [bar.get_height() for bar in bars] == [1, 1, 0]

    def test_the_gap_has_the_colour_of_its_direction(self) -> None:
        """Over- and under-confident bins differ in colour and hatch; the gap spans both values."""
        entry = metrics_of([0.25, 0.95, 0.95], [True, False, True])
        reliability = axes_of({"none": entry})[0]
        (under,), (over,) = gaps(reliability, UNDER), gaps(reliability, OVER)
        assert under.get_hatch() != over.get_hatch()
        assert round(under.get_x(), 6) == 0.2
        assert sorted((under.get_y(), under.get_y() + under.get_height())) == pytest.approx(
            [0.25, 1.0]
        )
        assert round(over.get_x(), 6) == 0.9
        assert sorted((over.get_y(), over.get_y() + over.get_height())) == pytest.approx(
            [0.5, 0.95]
        )

    def test_the_title_has_the_numbers(self) -> None:
        """Name, ECE and rows stand above the panel, the parts of the ECE in the legend."""
        entry = metrics_of([0.25, 0.95, 0.95], [True, False, True])
        reliability = axes_of({"fl+temp": entry})[0]
        assert reliability.get_title() == f"fl+temp: ECE {100 * entry.ece:.1f} %, n = 3"
        shown = " ".join(text.get_text() for text in reliability.get_legend().get_texts())
        assert f"over-confident ({100 * entry.over_ece:.1f} %)" in shown
        assert f"under-confident ({100 * entry.under_ece:.1f} %)" in shown

    def test_the_legend_hides_no_bar_and_no_bar_the_legend(self) -> None:
        """The legend stands on a ground of its own, since bars may reach into its corner."""
        entry = metrics_of([0.05, 0.15, 0.25, 0.35], [True] * 4)
        legend = axes_of({"none": entry})[0].get_legend()
        assert legend.get_frame_on()

    def test_one_row_of_panels_per_calibration(self) -> None:
        """Each calibration has four panels: reliability, counts, accuracy above, share above."""
        entry = metrics_of([0.25, 0.95], [True, False])
        assert len(axes_of({"none": entry})) == 4
        assert len(axes_of({"none": entry, "temp": entry, "iw+temp": entry})) == 12

    def test_counts_below(self) -> None:
        """The panel below shows the rows of every bin."""
        entry = metrics_of([0.25, 0.95, 0.95], [True, False, True])
        counts = axes_of({"none": entry})[1]
        assert [bar.get_height() for bar in counts.patches] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 2]


class TestAccuracyAbove:
    def test_against_brute_force(self) -> None:
        """Accuracy and share of the rows whose confidence is above each lower bin edge."""
        rng = np.random.default_rng(0)
        confidence = rng.uniform(0.05, 0.88, size=500)
        correct = rng.uniform(size=500) < confidence
        for bins in (1, 10, 15):
            counted = bins_of(list(confidence), list(correct), bins)
            accuracy, share = accuracy_above(counted)
            for number in range(bins):
                above = confidence > number / bins
                assert share[number] == pytest.approx(above.mean())
                if above.any():
                    assert accuracy[number] == pytest.approx(correct[above].mean())
                else:
                    assert np.isnan(accuracy[number])

    def test_a_row_on_an_edge_is_not_above_it(self) -> None:
        """Bins are closed on the right: a confidence of 0.5 is not above 0.5, 0.0 counts once."""
        _, share = accuracy_above(bins_of([0.0, 0.5, 1.0, 0.75], [True] * 4, 4))
        assert share.tolist() == [1.0, 0.75, 0.5, 0.25]

    @pytest.mark.parametrize("bins", [1, 10])
    def test_the_share_is_drawn_up_to_one(self, bins: int) -> None:
        """The steps of the share go on to the threshold 1, above which there is no row."""
        entry = metrics_of([0.25, 0.95, 0.95], [True, False, True], bins)
        (line,) = axes_of({"none": entry})[3].lines
        assert line.get_xdata()[-1] == 1.0


class TestText:
    def test_one_line_per_bin_with_rows(self) -> None:
        """Each line has the bin, its rows, confidence and accuracy; empty bins have none."""
        lines = text_diagram(bins_of([0.25, 0.95, 0.95], [True, False, True])).splitlines()
        assert len(lines) == 4
        assert lines[-2].split() == [
            "(0.20,",
            "0.30]",
            "1",
            "25.0",
            "%",
            "100.0",
            "%",
            "#" * 10 + "<" * 30,
        ]
        assert lines[-1].split() == [
            "(0.90,",
            "1.00]",
            "2",
            "95.0",
            "%",
            "50.0",
            "%",
            "#" * 20 + ">" * 18,
        ]

    @pytest.mark.parametrize(
        "bins", [1, 2, 15, 16, 30, *(pytest.param(n) for n in (100, 625, 997, 10_000))]
    )
    def test_it_fits_a_screen(self, bins: int) -> None:
        """With any number of bins, the table has at most 15 lines, and every row is in a line."""
        confidence = list(np.linspace(0, 1, 5000))
        counted = bins_of(confidence, [True] * 5000, bins)
        lines = text_diagram(counted).splitlines()[2:]
        assert len(lines) <= 15
        assert sum(int(line.split()[2]) for line in lines) == 5000

    def test_the_default_width_fits_eighty_columns(self) -> None:
        """No line is wider than 80 characters."""
        confidence = list(np.linspace(0, 1, 5000))
        lines = text_diagram(bins_of(confidence, [True] * 5000, 15)).splitlines()
        assert max(map(len, lines)) <= 80
