"""Few-shot class-incremental image classification: train once, then learn new classes from one to five images."""

__version__ = "0.1.0"
