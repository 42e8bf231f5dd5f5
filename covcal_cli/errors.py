"""The errors that a user can cause, each worded so that the user can act on it."""

import unicodedata

# The way for any model that covcal cannot open or feed: a pickle, or one that reads texts.
OUTPUTS_AS_TABLE = (
    "save what its predict_proba gives as tables (prob_NAME per class, and label) and pass those "
    "with --probabilities and no model"
)
# Characters without a picture that turn the direction of what follows them.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # controls, halves of characters, and breaks of lines
_LONGEST = 1000  # characters of a message


def printable(text: str) -> str:
    r"""Return a text of any origin in one line that a terminal or a log can show.

    Controls, line breaks, marks that turn the direction of writing and halves of characters are
    written as Python writes them, such as ``\x1b``: a name cannot move the cursor or begin a line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if char in _BIDI or unicodedata.category(char) in _UNSEEN
        else char
        for char in text
    )


def message(text: str) -> str:
    """Return a text of any origin as part of a message: printable, and not too long to be read.

    Of one that is, the beginning and the end are kept, where a message has its remedy.
    """
    text = printable(text)
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST * 3 // 5]} ... {text[-_LONGEST * 2 // 5 :]}"


class CovcalError(Exception):
    """Something the user can mend: bad input, a missing file, an output in the way.

    The message is one line that names the file, the thing and the remedy. The command line prints
    it and exits with code 1; the library raises it and touches no existing file.
    """

    def __str__(self) -> str:
        """Return the message, whose names may come from anywhere."""
        return message(super().__str__())


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
    text = printable(" ".join(str(error).split()))
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."
