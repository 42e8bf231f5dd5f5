"""The one function behind ``covcal report``."""

from collections.abc import Sequence
from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.files import check_output, write_text
from covcal_cli.report.content import ReportContent, gather
from covcal_cli.report.page import page


def report(
    path: str | Path,
    documents: Sequence[str | Path],
    output: str | Path,
    *,
    split: str = "test",
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    networks: str | Path | None = None,
    force: bool = False,
) -> ReportContent:
    """Write one self-contained HTML page about calibrations of a file.

    Where the target rows have labels it shows what was measured, else what is expected, and says
    which. The same input gives the same bytes.

    Parameters
    ----------
    path : str or Path
        A features or adapted file.
    documents : sequence of str or Path
        Calibrations; the verdict is about the first.
    output : str or Path
        The page to write.
    split, bins, resamples, seed, networks
        As `evaluate` has them.

    Raises
    ------
    CovcalError
        If the file or a calibration cannot be used, or the output cannot be written.
    """
    path, output, files = Path(path), Path(output), [Path(document) for document in documents]
    if output.suffix.lower() not in (".html", ".htm"):
        raise CovcalError(f"{output}: a report is a web page: give -o a name that ends in .html")
    check_output(output, force=force, inputs=[path, *files])
    content = gather(
        path,
        files,
        split=split,
        bins=bins,
        resamples=resamples,
        seed=seed,
        networks=None if networks is None else Path(networks),
    )
    write_text(output, page(content), force=force)
    return content
