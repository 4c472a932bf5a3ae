"""What all other layers use: files, locks, progress, interrupts, registries, texts of messages."""
