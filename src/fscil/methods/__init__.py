"""The method contract and every system that keeps it: a method is one file and one line here."""

from fscil.methods.alice import Alice
from fscil.methods.base import Memory, Method
from fscil.methods.finetune import FineTune

METHODS: dict[str, type[Method]] = {
    "alice": Alice,
    "finetune": FineTune,
}

__all__ = ["METHODS", "Alice", "Memory", "Method"]
