"""`hetcomm doctor`: finds what will make a job fail or run slowly, and says the fix."""
