"""Tests of the scripts in ``examples/``, which import each other as neighbours do."""

import sys

from tests import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
RESEARCH = EXAMPLES / "research"
sys.path[:0] = [str(EXAMPLES), str(RESEARCH), str(RESEARCH / "paper")]
