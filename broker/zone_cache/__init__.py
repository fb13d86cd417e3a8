"""Blocks of objects that the brokers of a zone read from the object store once for all of them. Imported only with `storage.zone_cache`."""
