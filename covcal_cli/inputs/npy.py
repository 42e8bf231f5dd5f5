"""Reading a ``.npy`` stream block by block, so that an array of any size takes little memory."""

import math
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


class NpyStream:
    """The header of a ``.npy`` stream, and its rows in order.

    Parameters
    ----------
    stream : binary file
        Read once, forwards; a member of a compressed zip will do.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype

    Raises
    ------
    ValueError
        If the stream is no array, or holds Python objects.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        self.shape, self._fortran, self.dtype = read(stream)
        if self.dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded")

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield `size` rows at a time, the last block shorter.

        Raises
        ------
        ValueError
            If the stream ends before the array does.
        """
        rows = self.shape[0]
        if self._fortran:  # columns come first: there is no way round reading them all
            whole = self._read(self.shape[::-1]).T
            yield from (whole[start : start + size] for start in range(0, rows, size))
            return
        for start in range(0, rows, size):
            yield self._read((min(size, rows - start), *self.shape[1:]))

    def _read(self, shape: tuple[int, ...]) -> NDArray[Any]:
        wanted = math.prod(shape) * self.dtype.itemsize
        data = bytearray()
        while len(data) < wanted:
            more = self._stream.read(wanted - len(data))
            if not more:
                raise ValueError("the array is cut short")
            data += more
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)
