"""A column of text as numbers, each to the bits of `cells.parsed`, without an interpreter wherever there is much.

>>> said(pa.array(["3,14", "1.234,5", "old", None], pa.large_string()), ",").tolist()
[3.14, 1234.5, nan, nan]
"""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data import cells
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.kernels.threads import in_pieces

_FEW = 1 << 11  # texts that are read before a compiler is loaded
_PIECE = 1 << 17  # texts that a thread reads at a time
_WIDTH = 8  # a text takes as long as so many numbers that are read
_loops = OnFirstUse("quoron_client.data.number_loops")


def said(values: pa.Array, decimal: str) -> NDArray[np.float64]:
    """What large texts (N,) say, (N,): NaN for null and for what is no finite number. No value raises."""
    if pa.types.is_dictionary(values.type):
        each = np.append(said(values.dictionary, decimal), np.nan)
        return np.asarray(each[pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False)], np.float64)
    if len(values) < _FEW:
        return _read(values, decimal)
    _, ends, letters = values.buffers()
    offsets = np.frombuffer(ends, np.int64)[values.offset :][: len(values) + 1]
    data = np.frombuffer(letters or b"\0", np.uint8)
    bits, unsure = np.empty(len(values), np.uint64), np.empty(len(values), np.uint8)
    loop = partial(_loops.numbers, offsets, data, ord(decimal), ord(".") if decimal == "," else -1, bits, unsure)
    in_pieces(loop, len(values), _WIDTH, _PIECE)
    found = bits.view(np.float64)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        found[missing], unsure[missing] = np.nan, 0
    left = np.flatnonzero(unsure)
    if len(left):
        coded = values.take(pa.array(left)).dictionary_encode()
        found[left] = _read(coded.dictionary, decimal)[coded.indices.to_numpy()]
    return found


def _read(values: pa.Array, decimal: str) -> NDArray[np.float64]:
    texts = values.cast(pa.large_binary()).to_pylist()
    numbers = [np.nan if text is None else cells.parsed(text.decode(errors="replace"), decimal) for text in texts]
    return np.array(numbers, np.float64)
