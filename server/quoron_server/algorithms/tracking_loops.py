"""The loop of `forecast`: predicted risks of many candidates, round by round."""

import numpy as np

from quoron_privacy.kernels.prebuilt import njit


@njit(cache=True, fastmath={"reassoc", "contract"})  # sums in any order, so that the processor adds several at once
def risks(known, candidates, backwards, sums, points, parts):  # type: ignore[no-untyped-def]
    """Fills `parts` (3, C) for `known`, the facts of `Assumed` that all candidates share.

    `sums` and `points`, as long as `backwards`, hold responses to each round's seed noise.
    """
    d, distance, h, slow, ridge, s, first, margin, lag_share, largest = known
    slope = h + ridge
    for c in range(len(candidates)):
        metric, gs, warm_rounds, warm_divisor, warm_noise, main_rounds, divisor, noise = candidates[c]
        p = 1.0 / (metric + ridge)
        keep, keep_slow = 1 - p * slope, 1 - p * (slow + ridge)
        gap, sampled, noised = distance, 0.0, 0.0  # distance by bias; mean squares of both kinds of noise
        moved, known_error = 0.0, 0.0
        # Warm-up: fresh gradients, so errors of rounds are independent and only mean squares are carried along.
        for t in range(int(warm_rounds)):
            reach = first
            if t > 0:
                reach = margin * np.sqrt(s * s * (1 + 1 / warm_divisor) + known_error) + lag_share * metric * moved
                reach = min(first, reach)
            sampling, private = s * s / warm_divisor, d * (reach * warm_noise) ** 2
            known_error = sampling + private
            moved = p * np.sqrt(slope**2 * (gap * gap + sampled + noised) + known_error)
            gap *= keep_slow
            sampled = keep * keep * sampled + p * p * sampling
            noised = keep * keep * noised + p * p * private
        rounds = int(main_rounds)
        # Main rounds: the noise of round k stays in all later sums, so its response is followed by itself, for each k.
        for k in range(rounds):
            sums[k], points[k] = 0.0, 0.0
        earlier = 1.0  # of what the warm-up left
        # A cohort's sampling adds `spread` to all later sums; the point's response is the same for all, later ones
        # having less of it: Σ spread, Σ spread · response and Σ spread · response² say it all.
        spread, weighted, squared = 0.0, 0.0, 0.0
        for j in range(1, rounds + 1):
            times = 1 if j == 1 else j
            own = s * s if j == 1 else s * s + (j * gs * moved) ** 2
            reach = margin * np.sqrt(own * (1 + 1 / divisor) + known_error) + lag_share * times * metric * moved
            reach = min(reach, largest * first)
            spread += own / divisor
            share = 1.0 / j
            row, errors, changes = backwards[len(backwards) - j :], 0.0, 0.0
            for k in range(j):
                total = sums[k] + reach * row[k]
                step = -p * (slope * points[k] + share * total)
                sums[k] = total
                points[k] += step
                errors += total * total
                changes += step * step
            private = noise * noise * d
            known_error = (private * errors + spread) * share * share
            change = private * changes
            change += p * p * (slope * slope * squared + 2 * slope * share * weighted + share * share * spread)
            change += (p * slope * earlier) ** 2 * (gap * gap + sampled + noised)
            squared = keep * keep * squared - 2 * keep * p * share * weighted + (p * share) ** 2 * spread
            weighted = keep * weighted - p * share * spread
            moved = np.sqrt(change)
            earlier *= keep
        final = 0.0
        for k in range(rounds):
            final += points[k] * points[k]
        left = abs(keep_slow) ** rounds * gap
        sampled = earlier * earlier * sampled + squared
        noised = earlier * earlier * noised + noise * noise * d * final
        parts[0, c] = (slow + ridge) * left * left / 2
        parts[1, c] = slope * sampled / 2
        parts[2, c] = slope * noised / 2
