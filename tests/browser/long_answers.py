"""Long answers, of about four characters a token, for tests and measurements of how they are shown.
In each but the first, a single block never ends."""

from __future__ import annotations

import random

WORDS = [
    *("the", "sea", "rain", "stone", "wind", "river", "light", "of", "and", "a", "under", "over"),
    *("`code`", "**bold**", "_soft_", "[link](https://a.test/)", "*both*", "日本語の文"),
]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def code(rng: random.Random, lines: int) -> str:
    body = [f"    value_{i} = f({rng.random():.3f}, 'text')  # {i}" for i in range(lines)]
    return "\n".join(["```python", "def f(x, y):", *body, "```"])


def items(rng: random.Random, count: int) -> str:
    return "\n".join(f"{i}. {words(rng, 6)}\n    - {words(rng, 4)}" for i in range(1, count + 1))


def table(rng: random.Random, rows: int) -> str:
    body = [f"| {words(rng, 3)} | {words(rng, 3)} | {i} |" for i in range(rows)]
    return "\n".join(["| a | b | c |", "|---|:-:|--:|", *body])


def mixed(rng: random.Random, characters: int) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < characters:
        parts += [f"## {words(rng, 4)}", words(rng, 60), code(rng, 12), items(rng, 6)]
        parts += [table(rng, 5), f"> {words(rng, 20)}", words(rng, 30)]
    return "\n\n".join(parts)


def answers(tokens: int) -> dict[str, str]:
    """By kind; the same ones each time."""
    rng = random.Random(1)
    characters = 4 * tokens
    kinds = {
        "mixed": mixed(rng, characters),
        "code": code(rng, characters // 40),
        "list": items(rng, characters // 60),
        "table": table(rng, characters // 30),
        "paragraph": words(rng, characters // 4),
        "lines": "\n".join(words(rng, 12) for _ in range(characters // 40)),
        "one item": "- x\n" + "\n".join(f"  - {words(rng, 6)}" for _ in range(characters // 25)),
        "quotation": "\n".join(f"> {words(rng, 12)}" for _ in range(characters // 40)),
    }
    return {kind: text[:characters] for kind, text in kinds.items()}
