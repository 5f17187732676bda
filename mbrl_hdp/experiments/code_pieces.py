"""The meaning of source code, in pieces: what always runs, and definitions that run only if something names them."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

_WITHOUT_MEANING = frozenset({"annotation", "returns", "type_comment", "type_params", "kind", "ctx"})
# A function with any other decorator may be called by whoever decorated it.
_PLAIN_DECORATORS = frozenset(
    {"property", "cached_property", "contextmanager", "lru_cache", "compiled", "no_type_check", "override"}
)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Piece:
    """A part of a module.

    Attributes:
        meaning: its syntax tree as text, without prose.
        name: what somebody must name for it to run; None: it runs when the module is imported.
    """

    meaning: str
    name: str | None = None

    @cached_property
    def words(self) -> frozenset[str]:
        """All names in it, and all words of its strings: what it may call."""
        return frozenset(_WORD.findall(self.meaning))


def pieces_of(source: str) -> list[Piece]:
    """Cut a source into pieces: functions, classes, methods of classes without bases, and all that is outside of them.

    Of a class with bases all methods belong to it, since whoever wrote the base may call them.
    """
    return [piece for node in ast.parse(source).body if not _is_docstring(node) for piece in _cut(node)]


def _cut(node: ast.stmt) -> Iterator[Piece]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield Piece(meaning_of(node), node.name if _is_called_by_name(node) else None)
        return
    if not isinstance(node, ast.ClassDef):
        yield Piece(meaning_of(node))
        return
    apart = [] if node.bases or node.keywords else [each for each in node.body if _is_plain_method(each)]
    yield from (Piece(meaning_of(each), each.name) for each in apart)
    rest: list[ast.AST] = [*node.decorator_list, *node.bases, *node.keywords]
    rest += [each for each in node.body if each not in apart]
    yield Piece(f"{node.name}{meaning_of(rest)}", node.name)


def _is_plain_method(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not node.name.startswith("__") and _is_called_by_name(node)


def _is_called_by_name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(_decorator_name(each) in _PLAIN_DECORATORS for each in node.decorator_list)


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _decorator_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def named_pieces(modules: Sequence[Sequence[Piece]], words: Iterable[str]) -> list[list[Piece]]:
    """Return the pieces of every module that run, or are named by one that does.

    A piece that computes the name of what it calls is not seen through; words of strings count as names for that.

    Args:
        modules: pieces of every module.
        words: further words that name pieces, from outside of the code.
    """
    waiting = {piece for pieces in modules for piece in pieces}
    known, counted = set(words), set[Piece]()
    while True:
        found = {piece for piece in waiting if piece.name is None or piece.name in known}
        if not found:
            return [[piece for piece in pieces if piece in counted] for pieces in modules]
        waiting -= found
        counted |= found
        known.update(*(piece.words for piece in found))


def hash_of(source: str) -> str:
    """Return the hash of a source without its prose."""
    return hashlib.sha256(meaning_of(ast.parse(source)).encode()).hexdigest()


def meaning_of(node: Any) -> str:
    """Write a syntax tree as text, the same for every version of Python."""
    if isinstance(node, list):
        return "[" + ",".join(meaning_of(item) for item in node if not _is_docstring(item)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return f"Raise({meaning_of(node.exc.func)})"
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setting", "choice"):
        fields["args"] = fields["args"][:1]
    kept = {name: value for name, value in fields.items() if name not in _WITHOUT_MEANING and value not in (None, [])}
    return f"{type(node).__name__}({','.join(f'{name}={meaning_of(value)}' for name, value in kept.items())})"


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
