"""Programs as users write them, across all rooms of the compiler."""
