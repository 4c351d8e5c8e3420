"""Token ids as text: from a server's answer to the transcript's line, and no number is made of any.

A prompt of a megabyte has some 200,000 of them: to make objects of them, and text again, would take 30 ms.
"""

from collections.abc import Iterable
from typing import Self

from rolloutgen.transcript.lines import Encoded, decode


class TokenIds(bytes):
    """Each in decimal, with a comma after it: what begins with the same bytes begins with the same ids.

    It is a sequence of bytes, not of ids: ``n`` says how many there are, ``numbers`` makes a list of them.
    """

    __slots__ = ()

    @classmethod
    def of(cls, ids: Iterable[int]) -> Self:
        return ids if isinstance(ids, cls) else cls(b"".join(b"%d," % number for number in ids))

    @classmethod
    def read(cls, text: bytes) -> Self | None:
        """Those of a JSON list, without its brackets and without blanks; None where it is another one."""
        odd = text.translate(None, b"0123456789,") or text[:1] == b"," or text[-1:] == b"," or b",," in text
        return None if odd else cls(text + b"," if text else b"")

    @property
    def n(self) -> int:
        return self.count(b",")

    def json(self) -> Encoded:
        return Encoded(b"[%b]" % self[:-1])

    def numbers(self) -> list[int]:
        numbers: list[int] = decode(self.json())
        return numbers
