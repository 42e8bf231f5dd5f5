"""Apply corruptions to images of shape (n, h, w) or (n, h, w, 3), with values in 0..1.

Each function in `CORRUPTIONS` takes images, a level and a random generator, and returns corrupted
images. Level 0 leaves the images unchanged, and level 1 makes them hardly readable.
"""

from collections.abc import Callable

import numpy as np
from scipy import ndimage

from benchmark.makers.classifiers import Values

Corruption = Callable[[Values, float, np.random.Generator], Values]


def corrupted(images: Values, name: str, level: float) -> Values:
    """Return the corrupted images; the random numbers have a fixed seed."""
    rng = np.random.default_rng(11)
    return np.clip(CORRUPTIONS[name](images, level, rng), 0.0, 1.0).astype(np.float32)


def _noise(images: Values, level: float, rng: np.random.Generator) -> Values:
    return np.asarray(images + level * rng.normal(size=images.shape))


def _blur(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    reach = level * images.shape[1] / 8
    return _filtered(images, lambda channel: ndimage.gaussian_filter(channel, (0, reach, reach)))


def _motion(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    width = max(2, round(level * images.shape[2] / 3))
    return _filtered(images, lambda channel: ndimage.uniform_filter1d(channel, width, axis=2))


def _contrast(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return np.asarray(0.5 * level + (1 - level) * images)


def _dark(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return np.asarray((1 - level) * images)


def _bright(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return np.asarray(level + images)


def _rotation(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return np.asarray(ndimage.rotate(images, 90 * level, axes=(1, 2), reshape=False, order=1))


def _shift(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return np.asarray(np.roll(images, round(level * images.shape[2] / 2), axis=2))


def _shear(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return _warped(images, np.array([[1, 0], [level, 1]]))


def _scale(images: Values, level: float, rng: np.random.Generator) -> Values:
    del rng
    return _warped(images, np.eye(2) / (1 - 0.6 * level))


def _warped(images: Values, matrix: Values) -> Values:
    """Apply a linear map around the middle of each image, and fill with black."""
    middle = (images.shape[1] - 1) / 2
    whole = np.eye(3)
    whole[1:, 1:] = matrix
    offset = np.array([middle] * 3) - whole @ np.array([middle] * 3)
    return _filtered(
        images, lambda channel: ndimage.affine_transform(channel, whole, offset, order=1)
    )


def _spots(images: Values, level: float, rng: np.random.Generator) -> Values:
    """Turn random pixels black or white."""
    hit = rng.random(images.shape[:3]) < 0.5 * level
    white = (rng.random(images.shape[:3]) < 0.5).astype(images.dtype)
    if images.ndim == 4:
        hit, white = hit[..., None], white[..., None]
    return np.where(hit, white, images)


def _occlusion(images: Values, level: float, rng: np.random.Generator) -> Values:
    """Cover a random square of each image with grey."""
    covered = images.copy()
    side = round(level * images.shape[1])
    corners = rng.integers(0, images.shape[1] - side + 1, size=(len(images), 2))
    for image, (top, left) in zip(covered, corners, strict=True):
        image[top : top + side, left : left + side] = 0.5
    return covered


def _coarse(images: Values, level: float, rng: np.random.Generator) -> Values:
    """Lower the resolution of the images."""
    del rng
    size = max(2, round(level * images.shape[1] / 4))
    rows = np.arange(images.shape[1]) // size
    means = np.stack([images[:, rows == r].mean(axis=1) for r in range(rows[-1] + 1)], axis=1)
    columns = np.arange(images.shape[2]) // size
    means = np.stack(
        [means[:, :, columns == c].mean(axis=2) for c in range(columns[-1] + 1)], axis=2
    )
    return np.asarray(means[:, rows][:, :, columns])


def _filtered(images: Values, function: Callable[[Values], Values]) -> Values:
    """Apply a function of images (n, h, w) to each colour channel."""
    if images.ndim == 3:
        return function(images)
    return np.stack([function(images[..., c]) for c in range(images.shape[3])], axis=3)


CORRUPTIONS: dict[str, Corruption] = {
    "noise": _noise,
    "blur": _blur,
    "motion": _motion,
    "contrast": _contrast,
    "dark": _dark,
    "bright": _bright,
    "rotation": _rotation,
    "shift": _shift,
    "shear": _shear,
    "scale": _scale,
    "spots": _spots,
    "occlusion": _occlusion,
    "coarse": _coarse,
}
