"""``covcal evaluate`` with groups, intervals, every metric, other files' networks, no labels."""

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from covcal_cli.maths.networks import networks_sha256, read_networks
from tests.cli_runner import Argument, covcal, printed_json
from tests.made_files import edited


def report(*arguments: Argument, cwd: Path | None = None) -> dict[str, Any]:
    return printed_json("evaluate", *arguments, cwd=cwd)


@pytest.fixture
def grouped(features: Path) -> Path:
    """features.h5 with a text column of three regions, and numbers."""
    with edited(features) as file:
        n = len(file["target/labels"])
        columns = file["target"].create_group("columns")
        names = np.array(["nord", "süd", ""])
        columns["region"] = np.char.encode(names[np.arange(n) % 3], "utf-8")
        columns["year"] = 2020 + np.arange(n) % 2
        columns["row"] = np.arange(n) * 1.5
    return features


class TestGroups:
    def test_a_column(self, grouped: Path) -> None:
        """Every group is what evaluate says of its rows alone; names are texts, in order."""
        found = report(grouped, "--by", "region")
        groups = found["groups"]["none"]
        assert found["by"] == "region"
        assert [entry["group"] for entry in groups] == ["(empty)", "nord", "süd"]
        assert sum(entry["n"] for entry in groups) == found["n"]
        with edited(grouped) as file:
            labels = file["target/labels"][:]
            labels[file["target/columns/region"][:] != b"nord"] = -1
            file["target/labels"][:] = labels
        alone = report(grouped)["metrics"]["none"]
        for key in groups[1].keys() - {"group", "small", "intervals"}:
            assert groups[1][key] == pytest.approx(alone[key]), key

    def test_numbers(self, grouped: Path) -> None:
        """A column of numbers groups by its values."""
        groups = report(grouped, "--by", "year")["groups"]["none"]
        assert [entry["group"] for entry in groups] == ["2020", "2021"]

    @pytest.mark.parametrize("by", ["class", "predicted"])
    def test_classes(self, grouped: Path, by: str) -> None:
        """By the true class a group's accuracy is its recall, by the predicted its precision."""
        groups = report(grouped, "--by", by)["groups"]["none"]
        with h5py.File(grouped) as file:
            test = file["target/split"][:] == 2
            labels = file["target/labels"][:][test]
            predicted = file["target/logits"][:][test].argmax(axis=1)
        chosen = labels if by == "class" else predicted
        for number, entry in enumerate(groups):
            assert entry["group"] == f"class {number}"
            inside = chosen == number
            assert entry["n"] == inside.sum()
            assert entry["accuracy"] == pytest.approx((predicted == labels)[inside].mean())

    def test_the_worst_class(self, grouped: Path) -> None:
        """The worst class adds the most to the class gap, which is a sum over classes."""
        found = report(grouped)
        classes = found["classes"]["none"]
        shares = [
            one["n"] * abs(one["mean_confidence"] - one["accuracy"]) / found["n"] for one in classes
        ]
        assert found["metrics"]["none"]["class_gap"] == pytest.approx(sum(shares))
        assert found["worst_class"]["none"] == classes[int(np.argmax(shares))]
        brier = sum(one["n"] * one["correctness_brier"] for one in classes) / found["n"]
        assert found["metrics"]["none"]["correctness_brier"] == pytest.approx(brier)

    def test_the_table_marks_small_groups(self, grouped: Path) -> None:
        """A group of few rows is marked, and the mark explained."""
        out = covcal("evaluate", grouped, "--by", "region").require_success().out
        assert "by region" in out
        assert "(n) 27" in out
        assert "groups with (n) have under 100 rows, so their ECE is mostly noise" in out

    def test_names_are_shown_as_they_are(self, grouped: Path) -> None:
        """A name that looks like markup or an emoji's is no command to the table."""
        with edited(grouped) as file:
            names = np.array([b"[bold]nord", b":smile:", b"[/]"])
            n = len(file["target/labels"])
            del file["target/columns/region"]
            file["target/columns/region"] = names[np.arange(n) % 3]
        out = covcal("evaluate", grouped, "--by", "region").require_success().out
        for name in ("[bold]nord", ":smile:", "[/]"):
            assert f" {name} " in out

    @pytest.mark.parametrize("name", ["site", ""])
    def test_an_unknown_column(self, name: str, grouped: Path) -> None:
        """What there is to group by is listed."""
        line = covcal("evaluate", grouped, "--by", name).error_line()
        assert line.endswith(
            f"no target column '{name}' to group by: use region, row, year, class, predicted"
        )

    def test_a_column_of_single_rows(self, grouped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A column such as an id makes no groups."""
        monkeypatch.setattr("covcal_cli.formats.groups.MAX_GROUPS", 20)
        assert (
            "more than 20 different values"
            in covcal("evaluate", grouped, "--by", "row").error_line()
        )

    def test_a_column_of_another_length(self, grouped: Path) -> None:
        """A damaged column is refused, not cut."""
        with edited(grouped) as file:
            del file["target/columns/year"]
            file["target/columns/year"] = np.arange(3)
        line = covcal("evaluate", grouped, "--by", "year").error_line()
        assert "/target/columns/year has shape (3,)" in line

    def test_classes_are_always_in_the_json(self, small_files: Path) -> None:
        """Per predicted class the rows add up to the hits and rows of all."""
        found = report(small_files / "adapted.h5", "-c", small_files / "temp.json")
        for name, metrics in found["metrics"].items():
            entries = found["classes"][name]
            assert [entry["group"] for entry in entries] == ["class 0", "class 1", "class 2"]
            hits = sum(entry["n"] * (entry["accuracy"] or 0) for entry in entries)
            assert hits == pytest.approx(metrics["n"] * metrics["accuracy"])


class TestBootstrap:
    def test_intervals_by_calibration(self, small_files: Path) -> None:
        """--bootstrap adds intervals to the JSON and a table; without it there are none."""
        arguments = (small_files / "adapted.h5", "-c", small_files / "temp.json")
        found = report(*arguments, "--bootstrap", 200, "--seed", 3)
        assert found["bootstrap"] == {"resamples": 200, "seed": 3, "level": 0.95}
        low, high = found["intervals"]["temp"]["accuracy"]
        assert low < found["metrics"]["temp"]["accuracy"] < high
        assert found == report(*arguments, "--bootstrap", 200, "--seed", 3)
        plain = report(*arguments)
        assert plain["bootstrap"] is None
        assert plain["intervals"] == {}
        assert plain["metrics"] == found["metrics"]
        out = covcal("evaluate", *arguments, "--bootstrap", 50).require_success().out
        assert "95 % intervals, 50 resamples, seed 0" in out

    def test_the_verdict_does_not_depend_on_it(self, small_files: Path) -> None:
        """The verdict of report and of a command with a gate is the same, too."""
        path, document = small_files / "features.h5", small_files / "temp.json"
        options = ((), ("--bootstrap", 3), ("--bootstrap", 300), ("--fail-above", "ece=0.9"))
        shown = [covcal("evaluate", path, "-c", document, *each).out for each in options]
        lines = [line for out in shown for line in out.splitlines() if line.startswith("Verdict")]
        assert len(lines) == len(options)
        (verdict,) = {line.removeprefix("Verdict").strip() for line in lines}
        page = ("-o", small_files / "verdict.html", "-f")
        for resamples in (0, 30):
            out = covcal("report", path, "-c", document, *page, "--bootstrap", resamples).out
            assert out.startswith(f"{verdict}.\n")

    def test_a_limit_inside_the_interval_is_said(self, small_files: Path) -> None:
        """What was not shown to be above the limit was not shown to be below it either."""
        path = small_files / "adapted.h5"
        value = report(path)["metrics"]["none"]["brier"]
        arguments = ("--bootstrap", 100, "--fail-above", f"brier={value}")
        out = covcal("evaluate", path, *arguments).require_success().out
        assert f"gate brier <= {value:g} not proved by the uncalibrated classifier" in out
        assert "; 80 rows are too few" in out

    def test_every_metric(self, small_files: Path) -> None:
        """--metrics all shows the metrics that the usual table leaves out."""
        path = small_files / "adapted.h5"
        usual = covcal("evaluate", path).require_success().out
        everything = covcal("evaluate", path, "--metrics", "all").require_success().out
        value = report(path)["metrics"]["none"]["smooth_ece"]
        assert "smooth ECE" not in usual
        assert "smooth ECE" in everything
        assert f"{100 * value:.1f} %" in everything


@pytest.fixture(scope="module")
def networks_folder(
    trained: Path, small_files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """adapted.h5 with real networks, a calibration of them, and features.h5."""
    folder = tmp_path_factory.mktemp("networks")
    shutil.copy(trained, folder / "adapted.h5")
    shutil.copy(small_files / "features.h5", folder)
    arguments = ("adapted.h5", "--method", "fl+temp", "-o", "fl.json")
    covcal("calibrate", *arguments, cwd=folder).require_success()
    return folder


class TestNetworks:
    def test_new_features_by_the_networks_of_the_calibration(self, networks_folder: Path) -> None:
        """A features file gives what the adapted file of the same rows gives."""
        arguments = ("adapted.h5", "--method", "blend", "-o", "blend.json", "-f")
        covcal("calibrate", *arguments, cwd=networks_folder).require_success()
        given = ("-c", "fl.json", "-c", "blend.json")
        stored = report("adapted.h5", *given, cwd=networks_folder)
        computed = report("features.h5", *given, cwd=networks_folder)
        assert set(stored["metrics"]) == {"none", "fl+temp", "blend"}
        for method, metrics in stored["metrics"].items():
            for name, value in metrics.items():
                assert computed["metrics"][method][name] == pytest.approx(value, abs=1e-5), name

    def test_networks_elsewhere(self, networks_folder: Path, tmp_path: Path) -> None:
        """--networks names the adapted file where the calibration's own is gone."""
        shutil.copy(networks_folder / "features.h5", tmp_path)
        shutil.copy(networks_folder / "fl.json", tmp_path)
        arguments = ("features.h5", "-c", "fl.json")
        assert "pass --networks" in covcal("evaluate", *arguments, cwd=tmp_path).error_line()
        found = report(*arguments, "--networks", networks_folder / "adapted.h5", cwd=tmp_path)
        assert "fl+temp" in found["metrics"]

    def test_two_networks_in_one_report(self, networks_folder: Path) -> None:
        """Calibrations of different networks are told apart: each is judged as it is alone."""
        shutil.copy(networks_folder / "adapted.h5", networks_folder / "second.h5")
        with edited(networks_folder / "second.h5") as file:
            arrays = read_networks(file["networks"])
            for name in arrays:
                if "bias" in name:
                    file["networks"][name][...] += 0.25 * np.arange(arrays[name].shape[-1])
            changed = networks_sha256(read_networks(file["networks"]))
            assert changed != file.attrs["networks_sha256"]
            file.attrs["networks_sha256"] = changed
        arguments = ("second.h5", "--method", "fl+temp", "-o", "other.json")
        covcal("calibrate", *arguments, cwd=networks_folder).require_success()
        names = ("fl", "other")
        both = report("features.h5", "-c", "fl.json", "-c", "other.json", cwd=networks_folder)
        for name in names:
            alone = report("features.h5", "-c", f"{name}.json", cwd=networks_folder)
            assert both["metrics"][name] == alone["metrics"]["fl+temp"]
        assert both["metrics"]["fl"]["ece"] != both["metrics"]["other"]["ece"]

    def test_networks_that_nothing_needs(self, networks_folder: Path) -> None:
        """Without an fl calibration the option is a mistake."""
        done = covcal("evaluate", "features.h5", "--networks", "adapted.h5", cwd=networks_folder)
        assert "no calibration uses it" in done.usage_error()
