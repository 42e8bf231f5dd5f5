"""Which preprocessing images get: what the user asks for, over what the model brings along."""

from collections.abc import Mapping
from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.inputs.domain import DomainData
from covcal_cli.inputs.pipeline import ImagePipeline
from covcal_cli.inputs.preprocessing import Preprocessing
from covcal_cli.inputs.preprocessing_files import found_preprocessing, load_preprocessing
from covcal_cli.models.classifier import Classifier


def image_pipeline(
    domains: Mapping[str, DomainData],
    classifier: Classifier,
    settings: ExtractSettings,
    model: Path | None,
) -> tuple[ImagePipeline | None, str | None, list[str]]:
    """Return the one pipeline for all images, where it comes from, and what to look into.

    Parameters
    ----------
    domains : mapping of str to DomainData
    classifier : Classifier
    settings : ExtractSettings
    model : Path or None
        The model's file, beside which there may be a preprocessing file.

    Returns
    -------
    ImagePipeline or None
        None where there are no images.
    str or None
        A note on its origin, unless the user gave all of it.
    list of str
        Warnings.

    Raises
    ------
    CovcalError
        If it does not fit the model, or was asked for and there are no images.
    """
    asked = settings.preprocessing
    images = {name: data.holds_images for name, data in domains.items()}
    if not any(images.values()):
        if settings.preprocess is not None or not asked.is_default:
            raise CovcalError(
                "preprocessing was asked for, and the rows already have the model's own shape: "
                "drop --size, --scale, --mean, --std, --color, --layout and --resample"
                if settings.preprocess is None
                else "--preprocess was given, and the rows already have the model's own shape: "
                "drop it"
            )
        return None, None, []
    base, origin = _base(classifier, settings, model)
    wanted = classifier.inputs[0]
    try:
        pipeline = base.overridden_by(asked).resolve(wanted.shape, wanted.dtype)
    except CovcalError as error:
        raise CovcalError(f"{classifier.name}: {error}") from error
    warnings = [
        f"the {name} goes in as it is, while images are preprocessed: make sure that it was "
        "prepared in the same way"
        for name, needed in images.items()
        if not needed
    ]
    return pipeline, origin, warnings


def _base(
    classifier: Classifier, settings: ExtractSettings, model: Path | None
) -> tuple[Preprocessing, str | None]:
    if settings.preprocess is not None:
        found = load_preprocessing(settings.preprocess, metadata=classifier.metadata, model=model)
        return found, None
    brought = found_preprocessing(classifier.metadata, model)
    if brought is not None:
        found, origin = brought
        return found, f"preprocessing as {origin} says; --preprocess none leaves it out"
    if settings.preprocessing.is_default:
        return Preprocessing(), (
            "no preprocessing was given: it follows the shape of the model's input alone; compare "
            "the line input with what training did"
        )
    return Preprocessing(), None
