"""Sandboxes: the isolated machine of one attempt. ``base`` is the contract, ``local`` the embedded default."""
