"""The schedule search: facts, actions, beam, and when a search is made."""
