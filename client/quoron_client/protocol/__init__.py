"""The words that coordinator and clients share: questions, answers, domains, and their bytes."""

MOST_PEOPLE = 1 << 20  # of one silo, each of whom is charged
