"""Loop IR: imperative loops over typed scalars, vectors and arrays, as executed by the kernel."""
