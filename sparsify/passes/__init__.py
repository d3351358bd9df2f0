"""Graph passes: from a model and a recipe to a graph whose sparse regions are kernels."""
