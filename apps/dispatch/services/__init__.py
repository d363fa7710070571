"""Every write of dispatch, a file per use case."""
