"""Index notation as text: a recursive descent parser, a printer with minimal parentheses, serialization."""
