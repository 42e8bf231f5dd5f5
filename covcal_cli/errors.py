"""The errors that a user can cause, each worded so that the user can act on it."""

# The way for any model that covcal cannot open or feed: a pickle, or one that reads texts.
OUTPUTS_AS_TABLE = (
    "save what its predict_proba gives as tables (prob_NAME per class, and label) and pass those "
    "with --probabilities and no model"
)


class CovcalError(Exception):
    """Something the user can mend: bad input, a missing file, an output in the way.

    The message is one line that names the file, the thing and the remedy. The command line prints
    it and exits with code 1; the library raises it and touches no existing file.
    """


class OutputExistsError(CovcalError):
    """An output file is already there and replacing it was not asked for."""


class TooFewRowsError(CovcalError):
    """A file lacks rows: a domain, rows of a split, labelled ones, or enough of them."""


class UnlabelledError(CovcalError):
    """The target rows to judge have no labels."""


class UnusedOptionError(CovcalError):
    """An option was given that nothing here has a use for; the command line exits with code 2."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option, self.reason = option, reason


class LimitExceededError(Exception):
    """What was measured exceeds a limit of the user's; the command line exits with code 3."""


def shown(value: object, limit: int = 60) -> str:
    """Return a value of foreign origin in quotes for a message, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_line(error: BaseException, limit: int | None = None) -> str:
    """Return an error's message without line breaks, cut to `limit` characters."""
    text = " ".join(str(error).split())
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."
