"""The words that coordinator and clients share: questions, answers, domains, and their bytes."""
