"""Copies between the tiers: ``contract`` says what is promised, one module per way to keep the promise.

Importing this package imports no torch; neither does ``thread``, which copies through any :class:`Copier`.
"""
