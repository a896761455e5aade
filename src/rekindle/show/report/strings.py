"""A table of the texts of a report: each text is written once, and named by its position elsewhere."""

from __future__ import annotations

from ...printed import name


class Strings:
    """Texts by position; 0 is the empty text. Every text is made printable and cut to 200 characters."""

    def __init__(self) -> None:
        self.texts: list[str] = [""]
        self._at: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        """The position of a text."""
        if text not in self._at:
            self._at[text] = len(self.texts)
            self.texts.append(name(text))
        return self._at[text]
