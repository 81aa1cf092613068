"""Prompts for pairs without prompts of their own: English text, code, lists and dialogue.

They are written for this project and depend on no tokenizer. Each set combines subjects with beginnings, so
its prompts resemble each other more than those of real clients do.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompt, Prompts

GENERAL = "the built-in general prompts"

_SUBJECTS = (
    "the harbour bridge",
    "a small vegetable garden",
    "the night train to the coast",
    "repairing a bicycle wheel",
    "a public library in winter",
    "the water supply of a village",
    "learning to play the cello",
    "a bakery that opens at five",
    "the history of paper",
    "measuring the height of a hill",
    "bees and orchards",
    "an old observatory",
    "planning a school trip",
    "the price of copper",
    "a lighthouse keeper's diary",
    "storing grain through the summer",
    "a chess club for beginners",
    "the migration of swallows",
    "insulating an attic",
    "a market on a river island",
    "sorting letters by hand",
    "the first day of a new job",
    "cooking for forty people",
    "a map with two errors",
    "training a rescue dog",
    "the archive of a newspaper",
    "forecasting rain",
    "a museum of clocks",
)

_ENGLISH = (
    "This article is about {subject}. Few people think about it before something goes wrong, but",
    "When she wrote her report on {subject}, she began with a question that nobody had asked:",
    "There are three common opinions about {subject}. The first one is that",
    "Summary\n\nThe committee discussed {subject} for most of the afternoon. It decided to",
)

_LISTS = (
    "Ten facts about {subject}:\n1.",
    "Checklist for {subject}\n\n- [ ] Write down who is responsible\n- [ ]",
    "| Question about {subject} | Answer |\n|---|---|\n| When did it begin? |",
    'topic: "{subject}"\nkeywords:\n  - costs\n  - dates\n  -',
)

_DIALOGUE = (
    "User: Can you explain {subject} to a child of eight?\nAssistant:",
    "Interviewer: You have spent years on {subject}. What surprised you most?\nGuest:",
    '"Tell me about {subject}," said the visitor.\n"Gladly," answered the guide. "',
    "From: Ines\nTo: Tomas\nSubject: {subject}\n\nHello Tomas,\n",
)

_TASKS = (
    ("mean", "numbers", "the arithmetic mean of some numbers"),
    ("reverse_words", "text", "the words of a text in reverse order"),
    ("is_leap_year", "year", "whether a year has 366 days"),
    ("count_vowels", "text", "how many vowels a text has"),
    ("merge", "first, second", "two sorted sequences merged into one"),
    ("celsius", "fahrenheit", "a temperature in degrees Celsius"),
    ("largest_gap", "numbers", "the largest difference between neighbours"),
    ("parse_duration", "text", "the seconds of a duration such as 1h30m"),
    ("unique", "items", "the items without repetitions, in order"),
    ("transpose", "matrix", "a matrix with rows and columns exchanged"),
    ("word_frequencies", "text", "how often each word occurs"),
    ("is_palindrome", "text", "whether a text reads the same backwards"),
    ("clamp", "value, low, high", "a value limited to a range"),
    ("primes_below", "limit", "all prime numbers below a limit"),
    ("group_by_length", "words", "the words grouped by their length"),
    ("moving_average", "numbers, width", "the moving average of a series"),
    ("to_roman", "number", "a number in Roman numerals"),
    ("longest_prefix", "words", "the longest prefix that all words share"),
    ("distance", "a, b", "the distance between two points"),
    ("chunked", "items, size", "the items in pieces of equal size"),
    ("retry_delays", "attempts", "waiting times that double with each attempt"),
    ("flatten", "tree", "the leaves of a nested list"),
    ("checksum", "data", "a checksum of bytes modulo 65521"),
    ("binary_search", "items, wanted", "the position of an item in a sorted list"),
    ("format_bytes", "size", "a size with a unit that people can read"),
    ("rotate", "items, steps", "the items moved to the left in a circle"),
    ("parse_query", "text", "the parameters of a query string"),
    ("interval_overlap", "a, b", "the length of the overlap of two intervals"),
)

_CODE = (
    'def {name}({arguments}):\n    """Return {meaning}."""\n',
    "// Returns {meaning}.\nfunction {name}({arguments}) {{\n",
    "/* Tests of {name}: it returns {meaning}. */\n#include <assert.h>\n\nint main(void) {{\n",
    "class {name}Test(TestCase):\n    # {name}({arguments}) returns {meaning}\n    def test_empty(self):\n",
)


def general_prompts() -> Prompts:
    """Return the prompts, which are the same each time."""
    texts = {
        "english": [form.format(subject=subject) for subject in _SUBJECTS for form in _ENGLISH],
        "code": [
            form.format(name=name, arguments=arguments, meaning=meaning)
            for name, arguments, meaning in _TASKS
            for form in _CODE
        ],
        "lists": [form.format(subject=subject) for subject in _SUBJECTS for form in _LISTS],
        "dialogue": [form.format(subject=subject) for subject in _SUBJECTS for form in _DIALOGUE],
    }
    sets = {
        name: tuple(Prompt(f"{name}-{number:04d}", text) for number, text in enumerate(found, start=1))
        for name, found in texts.items()
    }
    return Prompts(GENERAL, sets)


def given_prompts(path: Path | None) -> Prompts:
    """Return the prompts of a file or a folder; the general ones if there is none.

    Raises:
        InvalidRequestError: See ``read_prompts``.
    """
    return general_prompts() if path is None else read_prompts(path)
