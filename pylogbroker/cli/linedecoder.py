"""
Lines of bytes as messages.

A line ends with C{\\n} and nothing else does: a carriage return before it, NUL bytes and what is not UTF-8 are content like any other, and an empty
line is an empty message. So C{b"\\n".join(messages)} is the file again, but for a line feed at its very end, which L{LineDecoder.isEnded} remembers.
"""

from __future__ import annotations


class LineDecoder:
    """
    Bytes in, lines out.

    @ivar sizeMax: bytes that a line may have, without its end.
    @ivar count: lines given so far.
    @ivar overlong: the number, from 1, of a line that has more; from there on nothing more is given.
    @ivar isEnded: whether the last line given had a line feed behind it; C{True} before the first.
    """

    def __init__(self, sizeMax: int) -> None:
        self.sizeMax = sizeMax
        self.count = 0
        self.overlong: int | None = None
        self.isEnded = True
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """
        Take bytes.

        @return: the lines that end in them, without their ends; those before the overlong one, if there is one.
        """
        if self.overlong is not None:
            return []
        *lines, rest = data.split(b"\n")
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        sizeMax = self.sizeMax
        for index, line in enumerate(lines):
            if len(line) > sizeMax:
                self.overlong = self.count + index + 1
                del lines[index:]
                break
        self.count += len(lines)
        if self.overlong is None and len(self._rest) > sizeMax:
            self.overlong = self.count + 1
        return lines

    def finish(self) -> list[bytes]:
        """
        There are no more bytes.

        @return: the last line, if it has no line feed behind it.
        """
        if self.overlong is not None or not self._rest:
            return []
        self.count += 1
        self.isEnded = False
        return [bytes(self._rest)]
