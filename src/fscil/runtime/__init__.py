"""What every part of the program stands on: files, locks, progress, interrupts."""
