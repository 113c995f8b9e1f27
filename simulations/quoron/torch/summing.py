"""Sums of clipped rows where the rows are: `ClippedSum.of` in torch's float64, on any device that has it.

    sums = sum_clipped(rows, reduction, largest)            # rows (k, d), any floating type

Integers leave the device, so neither order nor chunks matter. Norms are added in the device's own order, which
noise#n8 allows for: integers may differ in their last places from the processor's, the sensitivity is the same.
"""

import numpy as np
import torch

from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.release import Sums

BLOCK = 2**25  # numbers at once
_ULP = 2.0**-52


def sum_clipped(rows: torch.Tensor, reduction: ClippedSum, largest: float) -> Sums:
    """The sums of `rows` (k, d); one with anything not finite, or beyond `largest`, has not answered."""
    d, device = rows.shape[1], rows.device
    total = torch.zeros(d, dtype=torch.int64, device=device)
    cells = torch.zeros(4, dtype=torch.int64, device=device)
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    centre = None if reduction.centre is None else torch.from_numpy(reduction.centre).to(device)
    unit = 2.0**reduction.bits
    for part in torch.split(rows, max(1, BLOCK // d)):
        row = part.double()
        answered = (row.amax(1) <= largest) & (row.amin(1) >= -largest)  # False for NaN
        row = row if centre is None else row - centre
        most = row.abs().amax(1)
        usable = answered & most.isfinite()
        row = torch.where(usable[:, None], row, 0.0)
        most = torch.where(usable & (most > 0), most, 1.0)
        ratio = row / most[:, None]
        root = (ratio * ratio).sum(1).sqrt()
        inside = most / reduction.norm
        s = torch.minimum(inside, 1.0 / (root * (1 + (d + 8) * _ULP)))
        total += (ratio * s[:, None] * unit).to(torch.int64).sum(0)
        # as `clipping_loops`: what the clipped row's norm leaves of 1, rounded down, and its soft share
        a = root * (1 + (d + 8) * _ULP) * s * (1 + 4 * _ULP)
        short = ((1 - a).clamp(min=0.0) * unit * (1 - 4 * _ULP)).to(torch.int64)
        within, x = 3 * short >= int(unit), short.double() / unit  # a quotient of integers would be of float32
        soft = ((x * (4 - 3 * x)).sqrt() * (1 - 4 * _ULP) * unit).to(torch.int64)
        soft = torch.where(within, torch.full_like(soft, int(unit)), soft)
        cells += torch.stack([each[usable].sum() for each in (short, within.long(), torch.ones_like(short), soft)])
        counts += torch.stack([(s < inside).sum(), answered.sum()])
    clipped, count = counts.tolist()
    return Sums(np.asarray(total.cpu()), np.asarray(cells.cpu()), clipped, count)
