"""Methods that keep a model per client or per group of clients."""

from covey.manymodel.local_only import LocalOnly

__all__ = ["LocalOnly"]
