"""Application of directives: index notation in, index notation out."""
