"""How ``covcal extract`` extracts: its settings and their defaults."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from covcal_cli.extract.sampling import Selection
from covcal_cli.inputs.outputs import OutputKind
from covcal_cli.inputs.preprocessing import Preprocessing
from covcal_cli.inputs.splits import DEFAULT_FRACTIONS, Fractions


@dataclass(frozen=True)
class ExtractSettings:
    """How to extract; the same for both domains.

    Attributes
    ----------
    preprocessing : Preprocessing
        What to do to images, setting by setting; it overrides `preprocess`.
    preprocess : str, optional
        Where the rest comes from; see
        `covcal_cli.inputs.preprocessing_files.load_preprocessing`. By default from the model's own
        metadata or a file beside it; what stays open comes from the model's input.
    classes : Path, optional
        The names of the classes in the order of the logits; see
        `covcal_cli.inputs.classfile.read_classes`.
    fractions : tuple of float
        Shares of train, validation and test where the data has no splits of its own.
    seed : int
        Seed of those splits and of a sample.
    selection : Selection
        Which rows of each domain.
    batch : int, optional
        Rows per run of the model; by default a power of two from 16 to 256 that keeps its input
        within 16 MiB.
    threads : int, optional
        Threads for the model and for decoding each; all available cores by default.
    weights : Path, optional
        Weights for the module that ``module:function`` returns.
    model_output : str, optional
        The model's output that holds the classes, where it has several.
    phi : str, optional
        ``"input"``, ``"none"`` or a tensor's name, instead of the layer that is found.
    providers : sequence of str
        Execution providers of ONNX Runtime in order of preference.
    outputs : {"logits", "probabilities"}, optional
        What the data holds where there is no model to run: tables of a classifier's outputs.
    skip_unreadable : bool
        Leave out up to 1 % of the rows that cannot be read, instead of stopping at the first.
    """

    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    preprocess: str | None = None
    classes: Path | None = None
    fractions: Fractions = DEFAULT_FRACTIONS
    seed: int = 0
    selection: Selection = field(default_factory=Selection)
    batch: int | None = None
    threads: int | None = None
    weights: Path | None = None
    model_output: str | None = None
    phi: str | None = None
    providers: Sequence[str] = ()
    outputs: OutputKind | None = None
    skip_unreadable: bool = True


class SettingsGiven(TypedDict, total=False):
    """The attributes of `ExtractSettings` as keyword arguments."""

    preprocessing: Preprocessing
    preprocess: str | None
    classes: Path | None
    fractions: Fractions
    seed: int
    selection: Selection
    batch: int | None
    threads: int | None
    weights: Path | None
    model_output: str | None
    phi: str | None
    providers: Sequence[str]
    outputs: OutputKind | None
    skip_unreadable: bool
