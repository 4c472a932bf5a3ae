"""The method contract, ALICE, and room for others: a method is one file and one line here."""

from fscil.methods.alice import Alice
from fscil.methods.base import Memory, Method

METHODS: dict[str, type[Method]] = {"alice": Alice}

__all__ = ["METHODS", "Alice", "Memory", "Method"]
