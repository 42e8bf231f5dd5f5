"""``covcal merge``: features files of parts of the data to one file of all of it.

The parts are the shards of a run, or files of one domain each, or both. The result has the bytes
that one run over everything would have written. Parts that do not belong together are refused by
the name of what differs.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from covcal_cli.errors import CovcalError
from covcal_cli.extract.agreement import require_origin, require_same_run
from covcal_cli.extract.joining import MergeReport, join_domains
from covcal_cli.extract.parts import Part
from covcal_cli.files import check_output
from covcal_cli.formats.features import DOMAINS, FeatureFile
from covcal_cli.formats.writer import HDF5Writer
from covcal_cli.labels.draws import write_marks
from covcal_cli.labels.joined import joined_marks


def merge(paths: Sequence[Path], output: Path, *, force: bool = False) -> MergeReport:
    """Merge shards, or files of one domain each, in any order, into one features file.

    Raises
    ------
    CovcalError
        If the files do not belong together, or a shard is missing or there twice.
    """
    if not paths:
        raise CovcalError("there is nothing to merge: give the features files of the parts")
    check_output(output, force=force, inputs=paths)
    with ExitStack() as stack:
        # The files must come of one run, or of like runs for different domains.
        files = [stack.enter_context(FeatureFile(path)) for path in paths]
        for file in files:
            require_origin(file)
            require_same_run(files[0], file)
        holding = {name: [file for file in files if name in file.handle] for name in DOMAINS}

        def marks(writer: HDF5Writer, parts: Mapping[str, Sequence[Part]]) -> None:
            rows = [np.asarray(part.rows) for part in parts.get("target", ())]
            found, labels = joined_marks(holding["target"], rows)
            if found.batches:
                write_marks(writer, found, labels)

        return join_domains(files, holding, output, marks, force=force)
