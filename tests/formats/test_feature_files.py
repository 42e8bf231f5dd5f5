"""The HDF5 files between the steps: every fault is named exactly, and reading is bounded."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.hdf5 import ATTRIBUTES_SHA256
from tests.cli_runner import covcal
from tests.made_files import edited, made_domain, write_adapted, write_features

Change = Callable[[Any], None]
N, K = 350, 3


def without(name: str) -> Change:
    def change(file: Any) -> None:
        del file[name]

    return change


def put(name: str, values: Any) -> Change:
    def change(file: Any) -> None:
        del file[name]
        file[name] = values

    return change


def empty_group(name: str) -> Change:
    def change(file: Any) -> None:
        del file[name]
        file.create_group(name)

    return change


def attribute(name: str, value: Any) -> Change:
    def change(file: Any) -> None:
        file.attrs[name] = value

    return change


def error_of(path: Path, change: Change) -> str:
    """Change a file, open it, and return the refusal without the path in front."""
    with edited(path) as file:
        change(file)
    with pytest.raises(CovcalError) as caught, FeatureFile(path):
        pass
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


KNOWN = "this version reads covcal.features/1 and covcal.adapted/1: make it with covcal extract"
FAULTS: dict[str, tuple[Change, str]] = {
    "logits missing": (
        without("source/logits"),
        ": /source/logits is missing: extract again",
    ),
    "labels missing": (
        without("target/labels"),
        ": /target/labels is missing: extract again",
    ),
    "split missing": (without("target/split"), ": /target/split is missing: extract again"),
    "ids missing": (without("target/ids"), ": /target/ids is missing: extract again"),
    "classes missing": (without("classes"), ": /classes is missing: extract again"),
    "labels too short": (
        put("target/labels", np.zeros(N - 1, np.int64)),
        f": /target/labels has {N - 1} rows but logits has {N}: extract again",
    ),
    "split too long": (
        put("source/split", np.zeros(N + 1, np.uint8)),
        f": /source/split has {N + 1} rows but logits has {N}: extract again",
    ),
    "features too short": (
        put("source/features", np.zeros((10, 4), np.float32)),
        f": /source/features has 10 rows but logits has {N}: extract again",
    ),
    "ids too short": (
        put("source/ids", np.array([b"a"])),
        f": /source/ids has 1 rows but logits has {N}: extract again",
    ),
    "other number of classes": (
        put("classes", np.array([b"a", b"b"])),
        ": /source/logits has 3 columns but /classes has 2: extract again",
    ),
    "unknown split": (
        put("target/split", np.full(N, 3, np.uint8)),
        ": /target/split holds 3: write 0, 1 or 2",
    ),
    "unknown schema": (
        attribute("schema", "covcal.features/2"),
        f" has schema 'covcal.features/2', but {KNOWN}",
    ),
    "unfinished": (
        attribute("complete", 0),
        " is not complete: run the command that made it again",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_structural_fault_is_named_when_the_file_is_opened(features: Path, fault: str) -> None:
    """Each fault has its own message: the dataset, both numbers, and what to do."""
    change, message = FAULTS[fault]
    assert error_of(features, change) == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aligned_logits", f"has 9 rows but logits has {N}"),
        ("aligned_domain_logits", f"has 9 rows but logits has {N}"),
    ],
)
def test_rows_of_members_are_checked_on_their_own_axis(
    adapted: Path, name: str, message: str
) -> None:
    """In arrays of members, rows are the second axis."""
    shape = (2, 9, K) if name == "aligned_logits" else (2, 9)
    assert message in error_of(adapted, put(f"target/{name}", np.zeros(shape, np.float32)))


def test_a_missing_mark_is_as_good_as_unfinished(features: Path) -> None:
    """A file without the attribute ``complete`` was cut off while it was written."""

    def change(file: Any) -> None:
        del file.attrs["complete"]

    assert error_of(features, change).startswith(" is not complete")


def test_a_foreign_file_has_no_schema(tmp_path: Path) -> None:
    """An HDF5 file of another program is refused by what it lacks."""
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
    assert error_of(path, lambda _: None) == f" has no schema, but {KNOWN}"


# Values of the wrong kind or number of axes must be refused, and not used.
ODD: dict[str, Change] = {
    "logits with one axis": put("target/logits", np.zeros(N, np.float32)),
    "logits a group": empty_group("target/logits"),
    "logits of text": put("target/logits", np.full((N, K), b"a")),
    "logits complex": put("target/logits", np.zeros((N, K), np.complex64)),
    "features with one axis": put("target/features", np.zeros(N, np.float32)),
    "features of another width": put("target/features", np.zeros((N, 7), np.float32)),
    "labels of text": put("target/labels", np.full(N, b"a")),
    "labels of fractions": put("target/labels", np.full(N, 0.5)),
    "labels with two axes": put("target/labels", np.zeros((N, 1), np.int64)),
    "split a single number": put("target/split", np.uint8(1)),
    "split with two axes": put("target/split", np.zeros((N, 1), np.uint8)),
    "split negative": put("target/split", np.full(N, -1, np.int8)),
    "split of fractions": put("target/split", np.full(N, 1.5)),
    "ids of numbers": put("target/ids", np.arange(N)),
    "classes of numbers": put("classes", np.arange(K)),
    "classes a single number": put("classes", 3),
    "classes a group": empty_group("classes"),
    "classes not UTF-8": put("classes", np.array([b"\xff", b"b", b"c"])),
    "schema a list": attribute("schema", ["covcal.features/1", "covcal.features/1"]),
    "complete a list": attribute("complete", [1, 1]),
    "adapted without its arrays": attribute("schema", "covcal.adapted/1"),
}
ODD_MEMBERS: dict[str, Change] = {
    "other classes": put("target/aligned_logits", np.zeros((2, N, K + 1), np.float32)),
    "same number of members": put("target/aligned_logits", np.zeros((3, N, K), np.float32)),
    "discriminators of others": put("target/aligned_domain_logits", np.zeros((3, N), np.float32)),
    "no member axis": put("target/aligned_domain_logits", np.zeros(N, np.float32)),
    "two domain logits a row": put("target/domain_logits", np.zeros((N, 2), np.float32)),
    "domain logits missing": without("target/domain_logits"),
    "aligned logits missing": without("target/aligned_logits"),
    "aligned domain logits missing": without("target/aligned_domain_logits"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_dataset_is_refused_when_the_file_is_opened(features: Path, odd: str) -> None:
    """A dataset of another type or number of axes than the schema's is named, not computed with."""
    assert error_of(features, ODD[odd])


@pytest.mark.parametrize("odd", ODD_MEMBERS)
def test_odd_arrays_of_members_are_refused(adapted: Path, odd: str) -> None:
    """An adapted file whose members do not match the classes, or each other, is refused."""
    assert error_of(adapted, ODD_MEMBERS[odd])


class TestNoFeatureFileAtAll:
    def test_truncated(self, features: Path) -> None:
        """A file that lost its end says so, with the bytes that are left."""
        whole = features.read_bytes()
        features.write_bytes(whole[: len(whole) // 2])
        assert covcal("inspect", features).error_line() == (
            f"{features} is cut short ({len(whole) // 2} bytes are left): "
            "copy it again or make it again"
        )

    @pytest.mark.parametrize("content", [b"text", b"\x89PNG\r\n\x1a\n" + b"\0" * 99, b"\x89HDF"])
    def test_not_hdf5(self, tmp_path: Path, content: bytes) -> None:
        """Another kind of file is no readable HDF5 file."""
        path = tmp_path / "x.h5"
        path.write_bytes(content)
        assert covcal("evaluate", path).error_line() == (
            f"{path} is not a readable HDF5 file: make it with covcal extract"
        )

    def test_empty_missing_and_folder(self, tmp_path: Path) -> None:
        """An empty file, no file and a folder are three different errors."""
        empty = tmp_path / "empty.h5"
        empty.touch()
        remedy = "make it with covcal extract"
        for path, what in (
            (empty, "is empty (0 bytes)"),
            (tmp_path / "no.h5", "does not exist"),
            (tmp_path, "is a folder, not a file"),
        ):
            assert covcal("evaluate", path).error_line() == f"{path} {what}: {remedy}"


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("features", value) for value in (np.nan, np.inf, -np.inf)),
            *(("logits", value) for value in (np.nan, np.inf)),
        ],
    )
    def test_no_number_names_dataset_row_and_id(
        self, features: Path, name: str, value: float
    ) -> None:
        """NaN or infinity is refused as it is read, naming dataset, row and id."""
        with edited(features) as file:
            file[f"target/{name}"][200, 1] = value
        rows = np.arange(100, 300, 2)
        with FeatureFile(features) as opened, pytest.raises(CovcalError) as caught:
            getattr(opened.require_target(), name)(rows)
        assert str(caught.value) == (
            f"{features}: /target/{name} row 200 (target/200.png) holds {value}: "
            "every value must be a finite number"
        )

    def test_a_logit_of_minus_infinity_rules_a_class_out(self, features: Path) -> None:
        """A row needs one finite logit; a row in which all logits are -inf is refused."""
        rows = np.arange(100, 300, 2)
        with edited(features) as file:
            file["target/logits"][200, 1:] = -np.inf
        with FeatureFile(features) as opened:
            read = opened.require_target().logits(rows)
        assert (read[50, 1:] == -np.inf).all()
        assert np.isfinite(read[50, 0])
        with edited(features) as file:
            file["target/logits"][200] = -np.inf
        with FeatureFile(features) as opened, pytest.raises(CovcalError, match=r"row 200 .* -inf"):
            opened.require_target().logits(rows)

    def test_no_number_in_a_member(self, adapted: Path) -> None:
        """The row of a member's NaN is the row of the file, not the member."""
        with edited(adapted) as file:
            file["source/aligned_logits"][1, 7, 2] = np.nan
            file["source/aligned_domain_logits"][1, 9] = np.inf
        with FeatureFile(adapted) as opened:
            source = opened.require_source()
            with pytest.raises(CovcalError, match=r"aligned_logits row 7 \(source/7.png\)"):
                source.aligned_logits(np.arange(20))
            with pytest.raises(CovcalError, match=r"aligned_domain_logits row 9 \(source/9.png\)"):
                source.aligned_domain_logits(np.arange(20))

    def test_infinities_that_cancel_are_still_found(self, features: Path) -> None:
        """Plus and minus infinity in one block do not hide each other."""
        with edited(features) as file:
            file["target/logits"][3] = np.inf, -np.inf, 0
        with FeatureFile(features) as opened, pytest.raises(CovcalError, match="row 3"):
            opened.require_target().logits(np.arange(10))

    def test_large_finite_numbers_are_read(self, features: Path) -> None:
        """Values near the limit of float32 are numbers, although their sum may overflow."""
        with edited(features) as file:
            file["target/logits"][...] = 3e38
        with FeatureFile(features) as opened:
            assert np.all(opened.require_target().logits(np.arange(N)) == np.float32(3e38))

    @pytest.mark.parametrize("label", [-2, K, 10_000])
    def test_labels_outside_the_classes(self, features: Path, label: int) -> None:
        """A label that is no class is refused with its row and the labels that are allowed."""
        with edited(features) as file:
            file["source/labels"][150] = label
        assert covcal("calibrate", features, "-o", "-").error_line() == (
            f"{features}: /source/labels row 150 is {label}: write 0 to {K - 1}, or -1 (unknown)"
        )


class TestReading:
    def test_scattered_rows(self, adapted: Path) -> None:
        """Any ascending choice of rows reads what indexing the whole array would give."""
        rng = np.random.default_rng(0)
        with FeatureFile(adapted) as opened, h5py.File(adapted) as plain:
            target = opened.require_target()
            for size in (0, 1, 2, 40, N):
                rows = np.sort(rng.choice(N, size, replace=False))
                group = plain["target"]
                assert np.array_equal(target.logits(rows), group["logits"][:][rows])
                assert np.array_equal(target.domain_logits(rows), group["domain_logits"][:][rows])
                for name in ("aligned_logits", "aligned_domain_logits"):
                    expected = group[name][:][:, rows]
                    assert np.array_equal(getattr(target, name)(rows), expected)
                assert target.ids(rows) == [f"target/{row}.png" for row in rows]

    def test_splits_partition_the_rows(self, features: Path) -> None:
        """Every row is in exactly one split, in ascending order."""
        with FeatureFile(features) as opened:
            source = opened.require_source()
            rows = [source.rows(name) for name in ("train", "validation", "test")]
        assert np.array_equal(np.concatenate(rows), np.arange(N))

    def test_blocks_bound_memory(self, tmp_path: Path) -> None:
        """Rows are handed out a few MiB at a time however many there are, in order."""
        sizes = (10, 1500, 10)
        source = made_domain("source", sizes=sizes, classes=1000)
        target = made_domain("target", sizes=sizes, classes=1000)
        path = write_adapted(tmp_path / "wide.h5", source=source, target=target, members=3)
        with FeatureFile(path) as opened:
            domain = opened.require_target()
            rows = np.arange(domain.n, dtype=np.int64)
            blocks = list(domain.blocks(rows))
            assert np.array_equal(np.concatenate(blocks), rows)
            assert max(map(len, blocks)) * 3 * 1000 * 4 <= 8 << 20
        assert len(blocks) > 1

    def test_blocks_are_cut_by_what_is_read(self, tmp_path: Path) -> None:
        """Wide features do not make the reads of narrow logits short."""
        target = made_domain("target", sizes=(3000, 0, 0), width=2048)
        source = made_domain("source", sizes=(30, 0, 0), width=2048)
        path = write_features(tmp_path / "f.h5", source=source, target=target)
        with FeatureFile(path) as file:
            domain = file.require_target()
            rows = domain.rows("train")
            assert [len(block) for block in domain.blocks(rows, "logits")] == [3000]
            longest = {
                max(len(block) for block in domain.blocks(rows, *names))
                for names in ((), ("features",), ("logits", "features"))
            }
            assert longest == {512}

    def test_ids_as_bytes(self, features: Path) -> None:
        """The ids have the same bytes as in the file."""
        with FeatureFile(features) as file:
            domain = file.require_target()
            rows = domain.rows("test")
            found = domain.id_bytes(rows)
            assert [value.decode() for value in found.tolist()] == domain.ids(rows)
            assert found.dtype == file.handle["target/ids"].dtype

    def test_an_empty_split_names_the_counts(self, tmp_path: Path) -> None:
        """A step that needs rows of an empty split says how many there are in each."""
        source = made_domain("source", sizes=(30, 0, 20))
        path = write_features(tmp_path / "f.h5", source=source)
        line = covcal("calibrate", path, "-o", "-").error_line()
        assert line == (
            f"{path} has no source validation rows (source: train 30, validation 0, test 20): "
            "extract again with a validation folder or other --fractions"
        )

    def test_a_domain_that_is_not_there(self, tmp_path: Path) -> None:
        """A file of one domain is read by steps that need no other, and refused by the rest."""
        path = write_features(tmp_path / "f.h5", only_source=True)
        covcal("calibrate", path, "--method", "temp", "-o", "-").require_success()
        assert covcal("evaluate", path).error_line() == (
            f"{path} has no target rows: extract them together with the source, or add them "
            "with covcal merge"
        )
        line = covcal("calibrate", path, "--method", "iw+temp", "-o", "-").error_line()
        assert line == (
            f"{path}: method iw+temp needs target rows: extract them together with the source"
        )


class TestWriting:
    def test_the_same_content_has_the_same_bytes(self, tmp_path: Path) -> None:
        """A file holds no times and nothing of the machine: written twice, it is the same."""
        first = write_adapted(tmp_path / "a.h5")
        second = write_adapted(tmp_path / "b.h5")
        assert sha256_of(first) == sha256_of(second)

    def test_a_reader_changes_nothing(self, features: Path) -> None:
        """Reading leaves the bytes of a file as they are."""
        before = sha256_of(features)
        covcal("inspect", features).require_success()
        covcal("calibrate", features, "-o", "-").require_success()
        assert sha256_of(features) == before

    def test_a_copy_elsewhere_is_the_same_file(self, features: Path, tmp_path: Path) -> None:
        """Nothing inside depends on where the file lies or what it is called."""
        copy = tmp_path / "sub"
        copy.mkdir()
        moved = Path(shutil.copy(features, copy / "named otherwise.h5"))
        out = covcal("inspect", moved).require_success().out
        assert out == covcal("inspect", features).require_success().out


def test_an_open_file_is_checked_and_left_open(tmp_path: Path) -> None:
    """A handle goes by the name it is given: the same checks, and the caller closes it."""
    path = write_features(tmp_path / "f.h5")
    with edited(path) as handle:
        with FeatureFile(Path("arrays"), handle) as file:
            assert file.path == Path("arrays")
            assert len(file.require_source().rows("validation"))
        assert handle  # h5py: false once closed
        handle.attrs["schema"] = "other/1"
        del handle.attrs[ATTRIBUTES_SHA256]
        with pytest.raises(CovcalError, match="arrays has schema 'other/1'"):
            FeatureFile(Path("arrays"), handle)
        assert handle
