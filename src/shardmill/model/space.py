"""TokenSpace: text ids, added control tokens and image codes on one line of ids.

    0 .............. text_size ........ code_offset ............ size ........ padded_size
    | text tokenizer | added tokens ... | image codes 0..K-1 ... | unused rows |

Tokenizers return local numbers; only the space says where they live. It is declared once, stored
with every token shard and compared with whatever reads them, so that two offsets never have to
agree by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import differences, to_plain

UINT16_SIZE = 1 << 16
# Megatron has no uint32, so large spaces are stored as int32.
MAX_SIZE = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpace:
    """Where text, control tokens and image codes live among the ids.

    `text_size` is the number of text rows of the model's embedding, at least the tokenizer's
    vocabulary. `specials` names ids that exist already (`{"boi": 7}`), `added` names new ones that
    follow the text in order. Image codes follow those, or begin at `codes_at`. `padded_size` is
    the number of embedding rows if the model has more than it uses.
    """

    text_size: int
    specials: Mapping[str, int] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    num_codes: int = 0
    codes_at: int | None = None
    padded_size: int | None = None

    def __post_init__(self) -> None:
        if self.text_size < 1 or self.num_codes < 0:
            raise ConfigError("a token space needs text_size >= 1 and num_codes >= 0")
        twice = sorted(set(self.added) & set(self.specials))
        if twice or len(set(self.added)) != len(self.added):
            raise ConfigError(f"a token space names {twice or list(self.added)} twice")
        for name, token in self.specials.items():
            if not 0 <= token < MAX_SIZE or self.is_code(token):
                raise ConfigError(f"special {name!r} has id {token}, which is no free id")
        if self.codes_at is not None and self.codes_at < 0:
            raise ConfigError(f"codes_at must not be negative, got {self.codes_at}")
        if self.padded_size is not None and self.padded_size < self._used():
            raise ConfigError(
                f"padded_size {self.padded_size} is below the {self._used()} ids used"
            )
        if self.size > MAX_SIZE:
            raise ConfigError(f"{self.size} ids do not fit into 32 bits")

    @property
    def code_offset(self) -> int:
        """The id of image code 0."""
        return self.text_size + len(self.added) if self.codes_at is None else self.codes_at

    @property
    def size(self) -> int:
        """The number of embedding rows that a model needs."""
        return self._used() if self.padded_size is None else self.padded_size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint16 and int32 that holds every id; both are Megatron's."""
        return np.dtype("<u2" if self.size <= UINT16_SIZE else "<i4")

    @property
    def names(self) -> dict[str, int]:
        """Every named id."""
        first_added = range(self.text_size, self.text_size + len(self.added))
        return {**self.specials, **dict(zip(self.added, first_added))}

    def special(self, name: str) -> int:
        """Return the id of a named token."""
        found = self.names.get(name)
        if found is None:
            known = ", ".join(sorted(self.names)) or "none"
            raise ConfigError(
                f"the token space has no token {name!r} (it has {known}): name its id, as in "
                f"--space 'specials={{\"{name}\":7}}', or add it: --space 'added=[\"{name}\"]'"
            )
        return found

    def is_code(self, token: int) -> bool:
        """Whether this id is an image code."""
        return self.code_offset <= token < self.code_offset + self.num_codes

    def code_ids(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return the ids of local image codes; one outside the codebook is a `SampleError`."""
        if codes.size and not (int(codes.min()) >= 0 and int(codes.max()) < self.num_codes):
            raise SampleError(
                "image code out of range",
                f"codes lie in {int(codes.min())}..{int(codes.max())}, "
                f"the space has {self.num_codes} of them",
            )
        return (codes.astype(np.int64) + self.code_offset).astype(self.dtype)

    def local_codes(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the image codes of ids that `code_ids` made."""
        return ids.astype(np.int64) - self.code_offset

    def check_tokenizer(self, vocab_size: int, name: str = "the tokenizer") -> None:
        """Raise `ConfigError` if a text tokenizer can return ids outside the text part."""
        if vocab_size > self.text_size:
            raise ConfigError(
                f"{name} has {vocab_size} ids, but the token space gives text only "
                f"{self.text_size}: give --space text_size={vocab_size} or more"
            )

    def check_text(self, ids: NDArray[Any], name: str = "the tokenizer") -> None:
        """Raise `ConfigError` if ids of text are those of image codes or of named tokens."""
        used = set(np.unique(ids).tolist())
        inside = sorted(used & {*range(self.code_offset, self.code_offset + self.num_codes)})
        if inside:
            free = self.text_size + len(self.added)
            raise ConfigError(
                f"{name} uses id {inside[0]} for text, and image codes would take ids "
                f"{self.code_offset} to {self.code_offset + self.num_codes - 1}: leave codes_at "
                f"out of --space, which puts them behind the text, at {free}"
            )
        for token, number in self.specials.items():
            if number in used:
                raise ConfigError(
                    f"{name} uses id {number} for text, which --space names {token!r}: name an id "
                    f"that no text has, or add one: --space 'added=[\"{token}\"]'"
                )

    def check_same(self, other: TokenSpace) -> None:
        """Raise `ConfigError` that lists the differences to another space."""
        lines = differences(to_plain(self), to_plain(other))
        if lines:
            raise ConfigError(f"the token spaces differ: {'; '.join(lines)}")

    def _used(self) -> int:
        # Codes may begin among the text (`codes_at`), and a special may lie behind everything.
        ends = [self.text_size + len(self.added), 1 + max(self.specials.values(), default=0)]
        return max(*ends, self.code_offset + self.num_codes if self.num_codes else 0)
