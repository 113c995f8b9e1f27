"""A small transformer with LoRA on made text, with user-level privacy of what users write: nothing is downloaded.

    python examples/models/text.py --users 2000 --rounds 25

A language model of a few words is first trained on public text, which is made as well. Then it is frozen, and adapters
of rank 2 in its attention and its last layer learn, with privacy, what users write otherwise: more of their own trade.
Half a minute on one processor.
"""

import argparse
import math

import torch
from torch import nn

import quoron.torch

WORDS = [
    *("<>", ".", "the", "a", "nurse", "doctor", "pilot", "miner", "sees", "calls", "helps", "finds"),
    *("ward", "scalpel", "patient", "chart", "cockpit", "wing", "shaft", "drill"),
]
PUBLIC, TRADES = (4, 8), {4: (12, 16), 5: (12, 16), 6: (16, 18), 7: (18, 20)}  # who writes of what
LENGTH, WIDTH = 6, 24


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a product of two thin matrices, the second zero at first (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / math.sqrt(frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As torch calls it."""
        return self.frozen(x) + x @ self.down.T @ self.up.T


class Block(nn.Module):
    """Attention to what was written before, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As torch calls it."""
        seen = self.before(x)
        pairs = self.query(seen) @ self.key(seen).transpose(1, 2) / math.sqrt(WIDTH)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + pairs.masked_fill(later, -1e9).softmax(dim=2) @ self.value(seen)
        return x + self.layers(self.after(x))


class Writer(nn.Module):
    """The next word, at every place of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks, self.out = nn.Sequential(Block()), nn.Linear(WIDTH, len(WORDS))

    def forward(self, sentences: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return logits (k, places, words) of sentences (k, places), and with labels the loss of every next word."""
        logits = self.out(self.blocks(self.words(sentences) + self.places))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    def adapted(self, rank: int) -> "Writer":
        """All of it frozen, but for adapters in queries, values and the last layer."""
        self.requires_grad_(False)
        for block in self.blocks:
            block.query, block.value = Adapted(block.query, rank), Adapted(block.value, rank)
        self.out = Adapted(self.out, rank)
        return self


def text(writers: torch.Tensor, draw: torch.Generator, own: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A sentence of each writer and, place by place, its next words; with chance `own` it is of its trade."""

    def one(first: int, last: int) -> int:
        return int(torch.randint(first, last, (1,), generator=draw))

    sentences = []
    for writer in writers.tolist():
        nouns = TRADES[writer] if float(torch.rand(1, generator=draw)) < own else (12, 20)
        sentences.append([0, one(2, 4), writer, one(8, 12), one(2, 4), one(*nouns), 1])
    whole = torch.tensor(sentences)
    return whole[:, :-1], whole[:, 1:]


def main() -> None:
    """Pre-train in public, adapt in private, and say how well nouns are foretold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--public", type=int, default=300, help="steps on public text")
    parser.add_argument(
        "--simulation-seed", type=int, help="noise that comes again, protects nobody, and is not charged"
    )
    parser.add_argument("--out", help="the run's folder")
    given = parser.parse_args()

    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    model = Writer()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(given.public):
        sentences, following = text(torch.randint(*PUBLIC, (32,), generator=draw), draw, own=0.4)
        optimiser.zero_grad()
        model(sentences, following)["loss"].backward()
        optimiser.step()

    counts = torch.randint(1, 9, (given.users,), generator=draw)
    owners = torch.repeat_interleave(torch.arange(given.users), counts)
    trades = torch.randint(*PUBLIC, (given.users,), generator=draw)
    sentences, following = text(trades[owners], draw, own=0.95)
    others = text(torch.randint(*PUBLIC, (500,), generator=draw), draw, own=0.95)

    adapted = model.adapted(given.rank)
    size = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    print(f"{size:,} numbers are trained; before: {perplexity(adapted, *others):.2f} words to choose a noun from")
    trained = quoron.torch.train(
        adapted,
        {"sentences": sentences, "labels": following},  # the module takes them by name and returns its loss
        user=owners.numpy(),
        epsilon=given.epsilon,
        delta=1e-6,
        seed=given.simulation_seed,
        algorithm="dp-sgd-wor",
        options={"rounds": given.rounds, "rate": 0.1, "step_size": 4.0},
        items_per_user=8,
        radius=50.0,
        clip_norm=0.5,
        local=quoron.torch.LocalSGD(epochs=1, batch_size=4, step_size=1.0),
        chunk=200,
        out=given.out,
    )
    print(trained.statement)
    print(f"at the end: {perplexity(trained.model, *others):.2f} words to choose a noun from")


def perplexity(model: nn.Module, sentences: torch.Tensor, following: torch.Tensor) -> float:
    """Of the last noun: there are eight, and two or four of each trade."""
    with torch.no_grad():
        said = model(sentences)["logits"][:, -2]
    return float(nn.functional.cross_entropy(said, following[:, -2]).exp())


if __name__ == "__main__":
    main()
