"""``adapt`` with few steps, for tests of what is around the training and not of what it finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from covcal_cli.adapt import settings

# Those of the fixture `trained`.
TRAINED_STEPS = 60


@contextmanager
def short_training(steps: int, **changes: Any) -> Iterator[None]:
    """Let the default preset take `steps` steps for psi and for the discriminators.

    `changes` are made to its other settings, such as ``members=1``.
    """
    whole = settings.default_settings()
    schedule = replace(whole.schedule, steps=steps, check_every=steps // 2, warm_up=10)
    after = replace(whole.discriminator.schedule, steps=steps, check_every=steps // 2)
    discriminator = replace(whole.discriminator, schedule=after)
    short = replace(whole, schedule=schedule, discriminator=discriminator, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "default_settings", lambda: short)
        yield
