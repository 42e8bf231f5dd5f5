"""List the shifts of the experiments, and the numbers published in the paper."""

from dataclasses import dataclass

METHODS = ("none", "temp", "iw+temp", "fl+temp", "fl+iw+temp")


@dataclass(frozen=True)
class Shift:
    """A shift of the experiments: source, target and classifier."""

    name: str  # Name of the shift in the paper, such as "M-U".
    source: str  # Name for `datasets.find_digits`, or domain of Office31.
    target: str
    model: str | None  # File in ``models``; None to train a linear classifier.
    paper_classifier: bool = False  # Whether this is the paper's classifier.
    all_rows: bool = False  # Whether to also report the ECE on all target rows.


@dataclass(frozen=True)
class Published:
    """A cell of the paper's Table 1, in percent; None if the number is not published."""

    ece: float  # Mean over ten runs.
    sd: float | None = None  # Standard deviation over ten runs.
    over: float | None = None  # The over-confident ECE.


_MNIST, _USPS, _SVHN = "park2020_lenet_mnist.onnx", "park2020_lenet_usps.onnx", "svhnnet.onnx"

SHIFTS = {
    shift.name: shift
    for shift in (
        Shift("M-M", "mnist", "mnist", _MNIST, paper_classifier=True),
        Shift("U-M", "usps", "mnist", _USPS, paper_classifier=True),
        Shift("M-U", "mnist", "usps", _MNIST, paper_classifier=True),
        Shift("M-S", "mnist", "svhn", _MNIST, paper_classifier=True, all_rows=True),
        Shift("S-M", "svhn-unseen", "mnist", _SVHN),
        Shift("S-U", "svhn-unseen", "usps", _SVHN),
        Shift("A-W", "amazon", "webcam", None),
        Shift("D-A", "dslr", "amazon", None),
        Shift("W-A", "webcam", "amazon", None),
    )
}

PAPER: dict[str, dict[str, Published]] = {
    name: dict(zip(METHODS, cells, strict=True))
    for name, cells in {
        "M-M": (
            Published(0.83, over=0.82),
            Published(0.18),
            Published(0.27),
            Published(0.24, 0.04),
            Published(0.21, 0.02),
        ),
        "U-M": (
            Published(42.43, over=42.43),
            Published(36.89, over=36.89),
            Published(7.68, 1.80),
            Published(17.08, 1.01),
            Published(10.58, 4.67),
        ),
        "M-U": (
            Published(21.26, over=21.26),
            Published(12.16, over=11.88),
            Published(15.92, 1.38),
            Published(11.47, 1.36),
            Published(10.85, 1.45),
        ),
        "S-M": (
            Published(33.94),
            Published(28.63),
            Published(26.08, 0.46),
            Published(23.37, 0.42),
            Published(21.59, 5.40),
        ),
        "M-S": (
            Published(59.96),
            Published(10.28),
            Published(25.47, 8.98),
            Published(3.90, 1.96),
            Published(8.57, 5.60),
        ),
        "A-W": (
            Published(43.82),
            Published(26.69),
            Published(21.82, 1.20),
            Published(17.29, 2.28),
            Published(13.49, 1.62),
        ),
        "D-A": (
            Published(35.09),
            Published(66.21),
            Published(65.89),
            Published(21.39, 3.17),
            Published(21.25, 2.84),
        ),
        "W-A": (
            Published(27.48),
            Published(54.59),
            Published(54.20),
            Published(25.21, 1.38),
            Published(19.85, 6.54),
        ),
    }.items()
}

# Published running times, and the total in the paper's LaTeX source. In the paper's table, two
# headings are swapped: the second number is the overhead, and the total is the sum.
PAPER_SECONDS = {"D-A": (9576, 9016, 18591)}
