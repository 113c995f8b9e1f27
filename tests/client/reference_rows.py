"""Slow, obvious versions of how rows become items: a column at a time, in float64, and a user after the other."""

from dataclasses import dataclass

import numpy as np

from quoron_client.data import columns
from quoron_client.data.encoding import _HAIR, ClassWeights, Range
from quoron_client.data.items import ItemBatch
from quoron_client.data.misfits import declared_labels


@dataclass
class Rows:
    """What all rows of a table become, and what of them does not fit."""

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    kept: np.ndarray
    unfit: np.ndarray  # (K, N)
    places: np.ndarray  # (N,) among `declared_labels`, -1 for none


def rows_of(rules, table):
    """Of all rows of a table."""
    kept, unfit, blocks = np.ones(table.num_rows, bool), [], []
    with np.errstate(all="ignore"):
        for each in rules.features:
            if each.is_number:
                values = each.read(table)
                missing = np.isnan(values)
                unfit.append(~((values >= each.low) & (values <= each.high)))
                values[missing] = 0.5 * each.low + 0.5 * each.high
                scaled = (2.0 * values - each.low - each.high) / (each.high - each.low)
                blocks.append(np.clip(scaled, -1.0, 1.0).astype(np.float32)[:, None])
            else:
                codes = each.read(table)
                missing = codes < 0
                unfit.append(missing)
                codes = codes if each.middle is None else np.where(missing, each.middle, codes)
                block = np.zeros((len(codes), each.width), np.float32)
                block[np.flatnonzero(codes >= 0), codes[codes >= 0]] = 1.0
                blocks.append(block)
            if rules.missing == "drop" and (each.is_number or each.middle is not None):
                kept &= ~missing
        labels, places = np.zeros(table.num_rows), np.full(table.num_rows, -1)
        if rules.label is not None:
            labels = rules.label.of(table)
            unfit.append(np.isnan(labels))
            kept &= ~np.isnan(labels)
            places = _places(rules.label, labels, table)
        weights = np.ones(len(labels)) if rules.weighted else None
        if isinstance(rules.class_weight, ClassWeights):
            weights = rules.class_weight.of(labels)
        if rules.weight is not None:
            values = columns.numbers(table, rules.weight.column)
            unfit.append(~((values >= 0) & (values <= rules.weight.most)))
            kept &= values >= 0
            weights = weights * np.minimum(values / rules.weight.most, 1.0)
    if rules.intercept:
        blocks.append(np.ones((len(kept), 1), np.float32))
    features = np.hstack(blocks).astype(np.float64)
    if rules.unit_rows:
        norms = np.linalg.norm(features, axis=1)
        scale = (rules.feature_norm * _HAIR / np.where(norms > 0, norms, 1.0))[:, None]
    else:
        scale = rules.scale
    features = (features * scale).astype(np.float32)
    for each in (features, labels, weights):
        if each is not None:
            each[~kept] = 0.0
    return Rows(features, labels, weights, kept, np.array(unfit).reshape(len(unfit), table.num_rows), places)


def _places(label, raw, table):
    if isinstance(label, Range):
        values = columns.numbers(table, label.column)
        return np.select([values < label.low, values > label.high], [0, 1], -1)
    signs = label.kind != "classes" or len(label.values) == 2
    return np.array([-1 if np.isnan(each) else int(each > 0) if signs else int(each) for each in raw], np.int64)


def items_of(rules, table, owners, users, most, *, zero_rows):
    """The items of all users, one after the other: of each the first `most` rows, of these the usable ones."""
    rows, taken, counts, zero = rows_of(rules, table), [], [], []
    for user in range(users):
        own = [place for place in np.flatnonzero(owners == user)[:most] if rows.kept[place]]
        zero += [len(taken)] if not own and zero_rows else []
        taken += own or [0] * zero_rows
        counts.append(len(own) or int(zero_rows))
    features, labels = rows.features[taken].reshape(-1, rules.dimension), rows.labels[taken]
    weights = None if rows.weights is None else rows.weights[taken]
    for each in (features, labels, weights):
        if each is not None:
            each[zero] = 0.0
    return ItemBatch(features, labels, np.append(0, np.cumsum(counts)).astype(np.int64), weights)


def marks_of(rules, table):
    """(rows that can be used (N,), unfit ones (K, N), places of labels (N,)) as `fused` marks them."""
    from quoron_client.data import fused

    rules.check(table)
    bits = np.unpackbits(fused.marks_of(rules, table), axis=1, bitorder="little")
    columns_, labels = len(rows_of(rules, table).unfit), len(declared_labels(rules)).bit_length()
    places = bits[:, 1 + columns_ : 1 + columns_ + labels] @ (1 << np.arange(labels)) - 1
    return bits[:, 0] == 0, bits[:, 1 : 1 + columns_].T == 1, places
