// The shared library has no code of its own: see the folders.
