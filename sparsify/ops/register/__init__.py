"""Registration of torch's operators in the table of `storage.tensor`, dense fallbacks, limit on dense memory."""
