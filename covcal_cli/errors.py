"""The errors that a user can cause, with messages that say what to do."""

import errno
import unicodedata

# The remedy for a model that covcal cannot open or run, such as a pickle or a model that reads
# texts.
OUTPUTS_AS_TABLE = (
    "save the output of its predict_proba as tables (prob_NAME per class, and label), and give "
    "them instead of a model"
)
# Invisible characters that change the direction of the text after them.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, surrogates, line and paragraph separators
_LONGEST = 1000  # characters in a message
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "pass a shorter one",
    errno.EBADF: "open it, or name a file with -o",
}


def printable(text: str) -> str:
    r"""Return any text as one line that is safe to show on a terminal or in a log.

    Control characters, line breaks, marks that change the direction of writing and halves of
    characters are written as in Python, such as ``\x1b``. So a name cannot move the cursor or begin
    a line.
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
    """Return any text as part of a message: printable, and not too long.

    A long text keeps its beginning, and its end because the remedy is there.
    """
    text = printable(text)
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST * 3 // 5]} ... {text[-_LONGEST * 2 // 5 :]}"


class CovcalError(Exception):
    """An error that the user can fix: bad input, a missing file, an existing output.

    The message is one line that names the file, the problem and the remedy. The command line prints
    it and exits with code 1. The library raises it and does not change existing files.
    """

    def __str__(self) -> str:
        """Return the message, made printable because it may contain names of any origin."""
        return message(super().__str__())


class OutputExistsError(CovcalError):
    """An output file exists and --force was not given."""


class TooFewRowsError(CovcalError):
    """A file lacks rows: a domain, rows of a split, labelled rows, or has too few rows."""


class UnlabelledError(CovcalError):
    """The target rows to measure have no labels."""


class UnusedOptionError(CovcalError):
    """The user gave an option without effect; the command line exits with code 2."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option, self.reason = option, reason


class LimitExceededError(Exception):
    """A result is beyond a limit of the user; the command line exits with code 3."""


class StoppedError(Exception):
    """Ctrl-C after results were saved, which the message names; the command line exits with 130."""


def shown(value: object, limit: int = 60) -> str:
    """Return a foreign value in quotes for a message, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_line(error: BaseException, limit: int | None = None) -> str:
    """Return an error's message without line breaks, cut to `limit` characters."""
    text = printable(" ".join(str(error).split()))
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."


def explained(error: OSError) -> str:
    """Return the message of an error of the system: the file, what is wrong, and the remedy."""
    reason = (error.strerror or str(error)).lower()
    remedy = _REMEDIES.get(error.errno or 0, "check it and try again")
    return message(f"{error.filename or 'the output'}: {reason}: {remedy}")
