"""Built-in recipes, one YAML file each; `sparsify recipes ls` lists them."""
