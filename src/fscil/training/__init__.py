"""Base training: the loop, what a recipe builds, run folders."""
