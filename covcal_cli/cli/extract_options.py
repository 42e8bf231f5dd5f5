"""Define and read the common options of ``covcal extract`` and ``covcal run``."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from covcal_cli.classifiers import MODEL_HELP, is_model
from covcal_cli.cli.options import ModelOutput, Seed, TrustModel
from covcal_cli.data.stores import SUFFIXES, is_table

if TYPE_CHECKING:
    from covcal_cli.data.output_columns import OutputKind
    from covcal_cli.data.preprocessing.settings import Preprocessing
    from covcal_cli.extract.settings import ExtractSettings


ColorName = StrEnum("ColorName", {"L": "L", "RGB": "RGB", "BGR": "BGR"})
LayoutName = StrEnum("LayoutName", {"NCHW": "NCHW", "NHWC": "NHWC", "NHW": "NHW"})
ResampleName = StrEnum(
    "ResampleName",
    {
        "nearest": "nearest",
        "bilinear": "bilinear",
        "bicubic": "bicubic",
        "lanczos": "lanczos",
        "box": "box",
        "hamming": "hamming",
    },
)
OnErrorName = StrEnum("OnErrorName", ["skip", "fail"])
Command = Callable[..., None]
_TABLES = "Table options"
_HEADINGS = {
    "Model options": (
        *("weights", "trust_model", "model_output", "phi", "providers", "classes"),
        *("batch", "threads"),
    ),
    "Image options": (
        *("preprocess", "size", "resize", "crop", "resample", "exif", "color", "layout"),
        *("scale", "mean", "std", "on_error"),
    ),
    _TABLES: ("choices", "multilabel", "keep"),
    "Row options": ("fractions", "sample", "limit", "shard", "seed"),
}

# The arguments. Tables of outputs need no MODEL.

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{MODEL_HELP} Leave out MODEL if the data are tables of a classifier's outputs.",
        show_default=False,
    ),
]
Source = Annotated[
    Path | None,
    typer.Argument(
        metavar="SOURCE",
        help="Labelled data like the training data, but not used for training: an image folder, "
        f"{', '.join(SUFFIXES)} or .tar.",
        show_default=False,
    ),
]
Target = Annotated[
    Path | None,
    typer.Argument(metavar="TARGET", help="The new data. Labels are optional.", show_default=False),
]
Logits = Annotated[
    bool,
    typer.Option(
        "--logits",
        rich_help_panel=_TABLES,
        help="SOURCE and TARGET are tables of logits. covcal can also recognise logits by the "
        'column names. Source and target may be one table with a column "domain".',
    ),
]
Probabilities = Annotated[
    bool,
    typer.Option(
        "--probabilities",
        rich_help_panel=_TABLES,
        help="SOURCE and TARGET are tables of probabilities.",
    ),
]
Confidence = Annotated[
    bool,
    typer.Option(
        "--confidence",
        rich_help_panel=_TABLES,
        help="SOURCE and TARGET are tables with one confidence per row: columns confidence and "
        "prediction, and in the source also correct (1 or 0) or label.",
    ),
]


@dataclass(frozen=True)
class Inputs:
    """The model and the data that the user gave."""

    model: str | None  # None for tables of outputs
    source: Path | None
    target: Path
    outputs: "OutputKind | None" = None  # None: covcal decides by the column names

    @classmethod
    def read(
        cls,
        model: str | None,
        source: Path | None,
        target: Path | None,
        target_only: Path | None = None,
        *,
        logits: bool,
        probabilities: bool,
        confidence: bool,
    ) -> "Inputs":
        """Find the model, the source and the target among the arguments."""
        kinds: dict[OutputKind, bool] = {
            "logits": logits,
            "probabilities": probabilities,
            "confidence": confidence,
        }
        asked = [kind for kind, is_asked in kinds.items() if is_asked]
        if len(asked) > 1:
            hint = " / ".join(f"--{kind}" for kind in asked)
            raise typer.BadParameter(
                "--logits, --probabilities and --confidence exclude each other: give only one "
                "of them",
                param_hint=hint,
            )
        tables = [Path(path) for path in (model, source, target) if path is not None]
        if asked:
            return cls._of_tables(tables, target_only, asked[0])
        every = [*tables, *([] if target_only is None else [target_only])]
        if target is None and every and all(map(is_table, every)):
            return cls._of_tables(tables, target_only, None)
        if model is None:
            raise typer.BadParameter("give MODEL, SOURCE and TARGET", param_hint="MODEL")
        if target_only is not None and (source is not None or target is not None):
            raise typer.BadParameter(
                "TARGET is given twice: give either SOURCE TARGET or --target TARGET",
                param_hint="--target",
            )
        if target is not None and is_model(target):
            raise typer.BadParameter(
                f"{target} is a model: give it first, as MODEL SOURCE TARGET", param_hint="TARGET"
            )
        only = target if target is not None else target_only
        if only is None and source is not None and (not is_model(model) or is_model(source)):
            argument = next(path for path in tables if not is_table(path))
            raise typer.BadParameter(
                f"{argument} is not a table that covcal reads: save it as .csv, .parquet, "
                ".npz or .h5. With a model, give MODEL, SOURCE and TARGET",
                param_hint="TARGET",
            )
        if only is None:
            raise typer.BadParameter(
                "give SOURCE and TARGET, or --target TARGET", param_hint="TARGET"
            )
        return cls(model, source, only)

    @classmethod
    def _of_tables(
        cls, tables: list[Path], target_only: Path | None, outputs: "OutputKind | None"
    ) -> "Inputs":
        if target_only is not None:
            if tables:
                raise typer.BadParameter(
                    "TARGET is given twice: give either [SOURCE] TARGET or --target TARGET",
                    param_hint="--target",
                )
            return cls(None, None, target_only, outputs)
        if len(tables) not in (1, 2):
            raise typer.BadParameter(
                "tables need no model: give only [SOURCE] TARGET", param_hint="TARGET"
            )
        return cls(None, tables[0] if len(tables) == 2 else None, tables[-1], outputs)


@dataclass(frozen=True)
class ExtractOptions:
    """The options of ``covcal extract`` that the user gave."""

    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Weights for a model given as module:function."),
    ] = None
    trust_model: TrustModel = False
    model_output: ModelOutput = None
    phi: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|input|none",
            help="Which features to keep: a tensor or layer, the model's input, or none. Default: "
            "the input of the last linear layer.",
        ),
    ] = None
    providers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="The devices to try, in this order: cpu, cuda, or (only for ONNX) tensorrt.",
        ),
    ] = None
    classes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the class names in the order of the logits: a JSON file, a text file "
            "with one name per line, or an earlier cal.json. Default: the model's own names, else "
            "the source's folders.",
        ),
    ] = None
    choices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A B C",
            help="The possible answers in a log with token log-probabilities (JSON lines of "
            "OpenAI or vLLM). Default: the source's labels. Write this option last.",
            show_default=False,
        ),
    ] = None
    multilabel: Annotated[
        bool,
        typer.Option(
            "--multilabel",
            help="Each row may have several labels, with one sigmoid or logit per label. True "
            "labels come from columns label_NAME of 1 and 0, or from a column label with "
            "lists such as cat;dog.",
        ),
    ] = False
    preprocess: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="How images are prepared for the model: a preprocessor_config.json, a timm "
            "config.json, a torchvision preset, ultralytics, module:function or none. The other "
            "image options override this option.",
        ),
    ] = None
    size: Annotated[str | None, typer.Option(metavar="N|HxW", help="Image size in pixels.")] = None
    resize: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="How to resize: squash[:N|HxW], short[:N], letterbox[:FILL] or none. Default: "
            "squash.",
        ),
    ] = None
    crop: Annotated[
        str | None, typer.Option(metavar="N|HxW", help="Size of the centre to keep after resizing.")
    ] = None
    resample: Annotated[
        ResampleName | None, typer.Option(help="Pillow's filter for resizing. Default: bilinear.")
    ] = None
    exif: Annotated[
        bool | None,
        typer.Option("--exif/--no-exif", help="Rotate images by their EXIF data. Default: off."),
    ] = None
    color: Annotated[ColorName | None, typer.Option(help="Colour channels.")] = None
    layout: Annotated[LayoutName | None, typer.Option(help="Order of the axes.")] = None
    scale: Annotated[
        float | None,
        typer.Option(help="Multiply pixels (0 to 255) by this factor. Default: 1/255 for floats."),
    ] = None
    mean: Annotated[
        str | None, typer.Option(metavar="A[,B,C]", help="Mean to subtract from scaled pixels.")
    ] = None
    std: Annotated[
        str | None,
        typer.Option(metavar="A[,B,C]", help="Standard deviation to divide scaled pixels by."),
    ] = None
    fractions: Annotated[
        str | None,
        typer.Option(
            metavar="TRAIN,VAL,TEST",
            help="Shares of rows in the train, validation and test splits, if the data has no "
            "such folders. Default: 0.6,0.4,0 for the source (0,1,0 without features), "
            "0.6,0.2,0.2 for the target.",
        ),
    ] = None
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draw N rows of each domain at random.")
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Take only the first N rows of each domain."),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Extract part I of N; covcal merge joins the parts."),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of a table to keep for covcal pick and --by. May be repeated. A column "
            "that is not a feature is always kept.",
        ),
    ] = None
    seed: Seed = 0
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of rows in a batch of the model. Default: chosen by the size of a row.",
        ),
    ] = None
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")] = (
        None
    )
    on_error: Annotated[
        OnErrorName,
        typer.Option(
            help="What to do with a file that cannot be read: skip it (up to 1 % of the files), "
            "or fail."
        ),
    ] = OnErrorName.skip

    @classmethod
    def of(cls, options: Sequence[str]) -> "ExtractOptions":
        """Parse the options stored in a features file. Raises ValueError for an unknown option."""
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for option in options:
            word, _, text = option.removeprefix("--").partition("=")
            name = word.removeprefix("no-").replace("-", "_")
            if name not in hints:
                raise ValueError(f"there is no option {word}")
            kind = next((part for part in get_args(hints[name]) if part is not None), hints[name])
            if name in ("choices", "keep"):
                values[name] = [*values.get(name, ()), text]
                continue
            values[name] = word == name.replace("_", "-") if kind is bool else kind(text)
        return cls(**values)

    def settings(self, outputs: "OutputKind | None" = None) -> "ExtractSettings":
        """Return the settings of the extraction.

        `outputs` is the kind of outputs in a table, or None.
        """
        from covcal_cli.extract.settings import ExtractSettings, Selection, Shard

        if self.sample is not None and self.limit is not None:
            raise typer.BadParameter(
                "--sample and --limit both choose rows: give only one of them",
                param_hint="--sample / --limit",
            )
        try:
            shard = None if self.shard is None else Shard.parse(self.shard)
        except ValueError:
            raise typer.BadParameter(
                f"{self.shard!r} must be I/N with I from 1 to N", param_hint="--shard"
            ) from None
        return ExtractSettings(
            preprocessing=self._preprocessing(),
            preprocess=self.preprocess,
            classes=self.classes,
            fractions=None if self.fractions is None else _fractions(self.fractions),
            seed=self.seed,
            selection=Selection(self.sample, self.limit, shard),
            batch=self.batch,
            threads=self.threads,
            trust_model=self.trust_model,
            weights=self.weights,
            model_output=self.model_output,
            phi=self.phi,
            providers=tuple(self.providers.split(",")) if self.providers else (),
            outputs=outputs,
            keep=tuple(self.keep or ()),
            choices=self._choices(outputs),
            multilabel=self.multilabel,
            skip_unreadable=self.on_error is OnErrorName.skip,
        )

    def _choices(self, outputs: "OutputKind | None") -> tuple[str, ...]:
        choices = tuple(self.choices or ())
        if choices and outputs not in (None, "probabilities"):
            raise typer.BadParameter(
                f"--choices reads a log of token log-probabilities: leave out --{outputs}",
                param_hint="--choices",
            )
        if len(choices) == 1 or len(set(choices)) < len(choices) or "" in choices:
            raise typer.BadParameter(
                "give at least two answers, each once: --choices A B C D", param_hint="--choices"
            )
        return choices

    def _preprocessing(self) -> "Preprocessing":
        from covcal_cli.data.preprocessing.pixels import Resize
        from covcal_cli.data.preprocessing.settings import Preprocessing

        try:
            rule = None if self.resize is None else Resize.parse(self.resize)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--resize") from None
        return Preprocessing(
            size=_size(self.size, "--size"),
            resize=rule,
            crop=_size(self.crop, "--crop"),
            resample=None if self.resample is None else self.resample.value,
            exif=self.exif,
            color=None if self.color is None else self.color.value,
            layout=None if self.layout is None else self.layout.value,
            scale=None if self.scale is None else _above_zero((self.scale,), "--scale")[0],
            mean=_numbers(self.mean, "--mean"),
            std=_above_zero(_numbers(self.std, "--std"), "--std"),
        )


def takes_extract_options(*without: str) -> Callable[[Command], Command]:
    """Give a command all options in `ExtractOptions`, except the fields in `without`.

    The options are added to the signature of the command, where typer finds them.
    """
    hints = get_type_hints(ExtractOptions, include_extras=True)
    shared = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_under_heading(field.name, hints[field.name]),
        )
        for field in fields(ExtractOptions)
        if field.name not in without
    ]

    def decorate(command: Command) -> Command:
        parameters: list[Parameter] = []
        for parameter in signature(command).parameters.values():
            parameters += shared if parameter.name == "options" else [parameter]

        @wraps(command)
        def with_options(**arguments: Any) -> None:
            values = {parameter.name: arguments.pop(parameter.name) for parameter in shared}
            command(**arguments, options=ExtractOptions(**values))

        with_options.__dict__["__signature__"] = Signature(parameters)
        with_options.__annotations__ = {item.name: item.annotation for item in parameters}
        return with_options

    return decorate


def _under_heading(name: str, annotation: Any) -> Any:
    kind, information = get_args(annotation)
    information = copy(information)
    headings = (heading for heading, names in _HEADINGS.items() if name in names)
    information.rich_help_panel = next(headings, None)
    return Annotated[kind, information]


def _size(text: str | None, option: str) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    try:
        size = int(height), int(width or height)
    except ValueError:
        raise typer.BadParameter(f"{text!r} must be N or HxW", param_hint=option) from None
    if min(size) < 1:
        raise typer.BadParameter(
            f"{text!r} has a side below 1 pixel: give 1 or more", param_hint=option
        )
    return size


def _numbers(text: str | None, option: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers: separate numbers by commas", param_hint=option
        ) from None
    if not all(map(math.isfinite, numbers)):
        raise typer.BadParameter(
            f"{text!r} holds a number that is not finite: write finite numbers", param_hint=option
        )
    return numbers


def _above_zero(values: tuple[float, ...], option: str) -> tuple[float, ...]:
    if not all(0 < value < math.inf for value in values):
        raise typer.BadParameter("give numbers above 0", param_hint=option)
    return values


def _fractions(text: str) -> tuple[float, float, float]:
    shares = _numbers(text, "--fractions")
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise typer.BadParameter("give three shares that sum to 1", param_hint="--fractions")
    return shares[0], shares[1], shares[2]
