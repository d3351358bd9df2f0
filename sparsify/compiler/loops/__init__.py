"""Loop IR: imperative loops over typed scalars, vectors and arrays, as the kernel will run them."""
