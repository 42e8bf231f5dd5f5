"""What a user should know of the way from the logits to what a model prints, whatever its kind."""

from covcal_cli.models.proof import ARGMAX

ONE_NUMBER = (
    "the model gives one number per row, read as the logit z of the second of two classes: the "
    "logits are 0 and z"
)
_SIGMOIDS = (
    "the model prints a sigmoid per class, so its confidences are not those of method none, which "
    "are the softmax of the same logits"
)
_LABELS_ONLY = "the model prints labels alone; confidences are the softmax of its logits"


def notes_on_tail(tail: str, *, is_single: bool) -> tuple[str, ...]:
    """Return what follows from a tail; `is_single`: one number per row stands for two classes."""
    if tail == "sigmoid" and not is_single:
        return (_SIGMOIDS,)
    return (_LABELS_ONLY,) if tail == ARGMAX else ()
