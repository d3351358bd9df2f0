"""The compiler of the system: translation units built side by side, cached on disk, loaded."""
