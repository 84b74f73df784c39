# SPDX-License-Identifier: Apache-2.0
"""Changes of C sources: operators, comparisons, conditions, constants by one, statements left out.

It reads tokens, not the grammar: what is no C any more does not compile, and is no mutant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.mutants.change import Change, make

TOKEN = re.compile(
    r"""(?P<skip>/\*.*?\*/|//[^\n]*|\s+|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
      |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      |(?P<word>[A-Za-z_]\w*)
      |(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|\d+\.?\d*(?:[eE][+-]?\d+)?[uUlLfF]*)
      |(?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\w\s])""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
OTHERS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "&&": ("||",), "||": ("&&",), "++": ("--",), "--": ("++",),
    "+=": ("-=",), "-=": ("+=",), "|=": ("&=",), "&=": ("|=",), "*=": ("/=",), "/=": ("*=",),
    "<<=": (">>=",), ">>=": ("<<=",), "/": ("*",), "%": ("/",), "^": ("&",), "|": ("&",),
    "<<": (">>",), ">>": ("<<",),
}  # fmt: skip
BINARY = {"+": "-", "-": "+", "*": "/", "&": "|"}  # where something stands before them
WORDS = {"true": "false", "false": "true"}
TYPES = {
    "struct",
    "union",
    "enum",
    "const",
    "static",
    "unsigned",
    "int",
    "char",
    "void",
    "bool",
    "size_t",
    "typedef",
}
FLOW = {"return", "if", "else", "for", "while", "do", "switch", "case", "default", "goto", "sizeof"}
WHOLE = {"break", "continue"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokens(source: str) -> list[Token]:
    found = (Token(m.lastgroup or "", m.group(), m.start()) for m in TOKEN.finditer(source))
    return [token for token in found if token.kind != "skip"]


def changes(path: str, source: str) -> Iterator[Change]:
    """Every change of a file, in the order of their places."""
    all_tokens = tokens(source)
    depth = 0  # of braces: functions and tables alone are changed, not declarations
    for i, token in enumerate(all_tokens):
        depth += {"{": 1, "}": -1}.get(token.text, 0)
        if depth:
            for new in _others(all_tokens, i):
                yield make(path, source, token.start, token.end, new)
            if condition := _condition(all_tokens, i):
                inside = source[condition.start + 1 : condition.stop - 1]
                yield make(path, source, condition.start, condition.stop, f"(!({inside}))")
            if end := _statement(all_tokens, i):
                yield make(path, source, token.start, end, ";")


def _others(all_tokens: list[Token], i: int) -> Iterator[str]:
    """What may stand instead of a token."""
    token, before = all_tokens[i], all_tokens[i - 1]
    follows = (before.kind in ("word", "number") and before.text not in FLOW) or before.text in (")", "]")
    pointer = token.text == "*" and (
        all_tokens[i - 2].text in TYPES or before.text in TYPES or before.text.endswith("_t")
    )
    if token.kind == "sign":
        if token.text in BINARY and follows and not pointer:
            yield BINARY[token.text]
        if token.text == "!":
            yield ""
        yield from OTHERS.get(token.text, ())
    elif token.kind == "word" and token.text in WORDS:
        yield WORDS[token.text]
    elif token.kind == "number" and before.text not in ("[", ":") and re.fullmatch(r"\d+[uUlL]*", token.text):
        digits = re.match(r"\d+", token.text)
        assert digits
        n, suffix = (
            int(digits.group(), 8 if re.match("0[0-7]", token.text) else 10),
            token.text[digits.end() :],
        )
        yield f"{n + 1}{suffix}"
        if n:
            yield f"{n - 1}{suffix}"


def _condition(all_tokens: list[Token], i: int) -> range | None:
    """The places of the parentheses behind `if` or `while`."""
    if all_tokens[i].text not in ("if", "while"):
        return None
    depth = 0
    for token in all_tokens[i + 1 :]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return range(all_tokens[i + 1].start, token.end)
    return None


def _statement(all_tokens: list[Token], i: int) -> int:
    """Where the statement ends that begins here, if it is one that could be left out; else 0."""
    token, before = all_tokens[i], all_tokens[i - 1]
    if before.text not in (";", "{", "}", ")", "else", ":") or token.kind != "word":
        return 0
    if token.text not in WHOLE and (token.text in TYPES | FLOW or token.text.endswith("_t")):
        return 0
    if token.text not in WHOLE and all_tokens[i + 1].kind == "word":  # a declaration
        return 0
    depth = 0
    for later in all_tokens[i:]:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(later.text, 0)
        if depth < 0:
            return 0
        if depth == 0 and later.text in (",", ":"):
            return 0
        if depth == 0 and later.text == ";":
            return later.end
    return 0
